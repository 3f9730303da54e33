{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Whether the map of a location (`where`) has the name in `key`, in CEL. */}}
{{- define "gpushare.known" -}}
{{- $patterns := get .keys .where -}}
({{ .key }} in variables.{{ .where }}
{{- range $patterns.prefixes }} || {{ $.key }}.startsWith('{{ . }}') && {{ $.key }}.matches(r'{{ $patterns.patterns }}'){{ end }})
{{- end }}

{{/* Whether a key of that name requests a share by itself, in CEL. */}}
{{- define "gpushare.requesting" -}}
{{- $patterns := get .keys .where -}}
(variables.{{ .where }}[?{{ .key }}].orValue(false)
{{- range $patterns.prefixes }} || {{ $.key }}.startsWith('{{ . }}') && {{ $.key }}.matches(r'{{ $patterns.requesting }}'){{ end }})
{{- end }}

{{/* The version of MutatingAdmissionPolicies to create; empty: none. */}}
{{- define "gpushare.translate" -}}
{{- $since := get (dict "v1" "1.36" "v1beta1" "1.34") .Values.admission.translate -}}
{{- $has := semverCompare (printf ">=%s-0" ($since | default "1.36")) .Capabilities.KubeVersion.Version -}}
{{- if and $since (not $has) -}}
{{- fail (printf "admission.translate: %s: requires Kubernetes %s or newer, and this is %s" .Values.admission.translate $since .Capabilities.KubeVersion.Version) -}}
{{- else if and (eq .Values.mode "dra") (not (and .Values.admission.templates (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version))) -}}
{{- else if $since -}}
admissionregistration.k8s.io/{{ .Values.admission.translate }}
{{- else if and $has (eq .Values.admission.translate "auto") -}}
admissionregistration.k8s.io/v1
{{- end -}}
{{- end }}

{{/* The template of the pods of a pod or a workload, in CEL. */}}
{{- define "gpushare.podTemplate" -}}
object.kind == 'Pod' ? dyn(object) :
object.kind == 'CronJob' ? dyn(object).spec.jobTemplate.spec.template : dyn(object).spec.template
{{- end }}
