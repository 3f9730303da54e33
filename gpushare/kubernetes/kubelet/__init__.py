# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of gpushare-node: gRPC on Unix sockets, without generated code.

| module | content |
|---|---|
| grpc_service | the kubelet's messages, services on a socket, their streams, calls |
| memory_units | a card's memory as countable devices (pure) |
| device_plugin | the device plugin v1beta1, and its registration |
| dra_plugin | the driver of dynamic resource allocation |
"""
