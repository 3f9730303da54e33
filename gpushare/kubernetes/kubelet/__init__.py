# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of gpushare-node: gRPC on Unix sockets, without generated code.

| module | content |
|---|---|
| messages | the messages and services of the kubelet's interfaces |
| grpc_service | services on a socket, their streams, calls of the kubelet |
| memory_units | a card's memory as countable devices (pure) |
| device_plugin | the device plugin v1beta1, and its registration |
| dra_plugin | the driver of dynamic resource allocation |
"""
