{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* gpushare.yaml of the nodes. packaging/image/gpushare-image knows the file by its first line. */}}
{{- define "gpushare.configuration" -}}
# Written by gpushare's chart, which replaces what you change here.
{{ merge (dict "kubernetes" (dict "mode" .Values.mode)) .Values.configuration | toYaml }}
{{- end }}

{{- define "gpushare.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/* What it takes to run a command on the node, with nsenter(1). */}}
{{- define "gpushare.onNode" -}}
securityContext:
  privileged: true
{{- end }}

{{/* gpushare-node: root, because the kubelet's folders are root's, but without capabilities. */}}
{{- define "gpushare.confined" -}}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "gpushare.identity" -}}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: POD_UID
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
{{- end }}

{{/* The kubelet's folders that gpushare-node uses: in any mode, claims of the mode dra may be left. */}}
{{- define "gpushare.kubeletFolders" -}}
plugins plugins_registry{{ if eq .Values.mode "plugin" }} device-plugins pod-resources{{ end }}
{{- end }}

{{/* The kubelet has device-plugins at this path, whatever its root directory is: DevicePluginPath in
     k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/constants.go. */}}
{{- define "gpushare.kubeletFolder" -}}
{{ eq .folder "device-plugins" | ternary "/var/lib/kubelet" .root }}/{{ .folder }}
{{- end }}

{{/* The nodes of the DaemonSets, and what their pods have in common. */}}
{{- define "gpushare.placement" -}}
nodeSelector:
  kubernetes.io/os: linux
  kubernetes.io/arch: amd64
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
