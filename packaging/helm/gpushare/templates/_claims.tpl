{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Variables of the translating policy in mode dra: `names` has for each container the name of the template
     that says its request, and nothing where no name says it. */}}
{{- define "gpushare.claims" -}}
{{- $claims := .claims -}}
{{- $unsaid := $claims.unsaid.limit | toJson -}}
# Limits that say how much: the vendor of each, and the numbers that it accepts.
- name: of
  expression: >-
    {{ $claims.of | toJson }}
- name: accepted
  expression: >-
    {{ $claims.accepted | toJson }}
- name: memory
  expression: >-
    {{ .memory | toJson }}
- name: countLabels
  expression: >-
    {{ $claims.labels | toJson }}
# Whole numbers by limit.
- name: numbers
  expression: >-
    variables.limits.map(limits, limits.transformMap(k, v,
      k in variables.of && quantity(string(v)).isInteger(), quantity(string(v)).asInteger()))
- name: vendors
  expression: >-
    variables.numbers.map(numbers, (numbers.map(k, variables.of[k]).filter(v, v != '') + [''])[0])
# What the container requests: limits above 0, all of one vendor, or none.
- name: amounts
  expression: >-
    variables.indices.map(i,
      variables.vendorLimits[i].all(k, k in variables.numbers[i] || k in {{ $unsaid }}) &&
      variables.numbers[i].all(k, v, (v > 0 || k in {{ $claims.zero | toJson }}) &&
        (variables.of[k] == variables.vendors[i] || variables.of[k] == '' && variables.vendors[i] in {{ $claims.shared | toJson }}) &&
        (!(k in variables.accepted) || variables.accepted[k].exists(r, v >= r[0] && v <= r[1]))) &&
      !{{ .count.annotation | toJson }}.exists(k, k in variables.annotations)
        ? variables.numbers[i].transformMap(k, v, v > 0, v) : {})
- name: counts
  expression: >-
    variables.indices.map(i, variables.amounts[i].transformList(k, v, k in {{ .count.limit | toJson }}, v) +
      variables.countLabels.transformList(k, v, v == variables.vendors[i] && k in variables.labels,
        variables.labels[k].matches('^[0-9]{1,2}$') ? int(variables.labels[k]) : 0))
- name: cards
  expression: >-
    variables.indices.map(i, size(variables.counts[i]) > 1 ? 0 : (variables.counts[i] +
      variables.amounts[i].transformList(k, v, k in {{ .cores | toJson }} && v > 100, v / 100) + [1])[0])
# Of each card. Totals of all cards have to divide, in the vendor's own unit.
- name: shares
  expression: >-
    variables.indices.map(i, !(variables.cards[i] in {{ untilStep 1 17 1 | toJson }}) ? {} :
      variables.amounts[i].transformMap(k, v,
        k in {{ $claims.summed | toJson }} || k in {{ .cores | toJson }} && v > 100
          ? v % variables.cards[i] == 0 : true,
        k in {{ $claims.summed | toJson }} || k in {{ .cores | toJson }} && v > 100 ? v / variables.cards[i] : v))
- name: mebibytes
  expression: >-
    variables.shares.map(shares, shares.transformList(k, v, k in variables.memory,
      (v * variables.memory[k] + 1048575) / 1048576))
- name: percents
  expression: >-
    variables.shares.map(shares, shares.transformList(k, v, k in {{ .percent | toJson }}, v))
- name: cores
  expression: >-
    variables.shares.map(shares, (shares.transformList(k, v, k in {{ .cores | toJson }}, v) + [0])[0])
- name: names
  expression: >-
    variables.indices.map(i, variables.containers[i].?env.orValue([]).exists(e, e.name in {{ $claims.env | toJson }}) ? '' :
      i in variables.ofPod ? (size(variables.vendorLimits[i]) == 0 ? variables.nameOfPod : '') :
      size(variables.shares[i]) == 0 || size(variables.shares[i]) != size(variables.amounts[i]) ||
      size(variables.mebibytes[i]) + size(variables.percents[i]) > 1 || variables.cores[i] > 100 ||
      variables.shares[i].transformList(k, v, k in {{ .cores | toJson }}, v).size() > 1 ? '' :
      size(variables.mebibytes[i]) == 1
        ? (variables.cores[i] == 100 || variables.mebibytes[i][0] > 999999999 ? '' :
          'gpushare-' + string(variables.mebibytes[i][0]) + 'mi-' + string(variables.cores[i]) + '-' + string(variables.cards[i])) :
      size(variables.percents[i]) == 1 && variables.percents[i][0] < 100
        ? (variables.cores[i] == 100 ? '' :
          'gpushare-' + string(variables.percents[i][0]) + 'pct-' + string(variables.cores[i]) + '-' + string(variables.cards[i])) :
      size(variables.percents[i]) == 1 && variables.percents[i][0] > 100 ? '' :
      size(variables.percents[i]) == 1 || variables.cores[i] in [0, 100] || variables.vendors[i] in {{ $claims.all | toJson }}
        ? 'gpushare-all-' + string(variables.cores[i] % 100) + '-' + string(variables.cards[i]) : '')
{{- end }}

{{/* KAI: annotations for the first container, or for the one that is named. Before `requesting`. */}}
{{- define "gpushare.claimsOfPod" -}}
- name: claims
  expression: object.spec.?resourceClaims.orValue([])
- name: nameOfPod
  expression: >-
    [variables.annotations[?'gpu-fraction'].orValue('').matches('^0?[.][0-9]{1,2}$') && !('gpu-memory' in variables.annotations)
      ? string(int(double(variables.annotations['gpu-fraction']) * 100.0 + 0.5)) + 'pct' :
    variables.annotations[?'gpu-memory'].orValue('').matches('^[1-9][0-9]{0,8}$') && !('gpu-fraction' in variables.annotations)
      ? variables.annotations['gpu-memory'] + 'mi' : '']
    .map(m, m in ['', '0pct'] || !variables.annotations[?'gpu-fraction-num-devices'].orValue('1').matches('^([1-9]|1[0-6])$')
      ? '' : 'gpushare-' + m + '-0-' + variables.annotations[?'gpu-fraction-num-devices'].orValue('1'))[0]
- name: ofPod
  expression: >-
    variables.indices.filter(i, ('gpu-fraction' in variables.annotations || 'gpu-memory' in variables.annotations) &&
      ('gpu-fraction-container-name' in variables.annotations
        ? variables.containers[i].name == variables.annotations['gpu-fraction-container-name']
        : i == variables.initContainers))
{{- end }}

{{/* The changes of the pod's claims, of each translated container, and a note of what no name says. */}}
{{- define "gpushare.claimPatches" -}}
variables.translated.filter(i, variables.claimOf[i] == i).map(i, JSONPatch{
  op: 'add',
  path: '/spec/resourceClaims/-',
  value: {'name': 'gpushare-' + string(i), 'resourceClaimTemplateName': variables.names[i]}
}) +
variables.translated.filter(i, !has(variables.containers[i].resources)).map(i, JSONPatch{
  op: 'add', path: variables.paths[i] + '/resources', value: {}
}) +
variables.translated.filter(i, !has(variables.containers[i].resources.claims)).map(i, JSONPatch{
  op: 'add', path: variables.paths[i] + '/resources/claims', value: []
}) +
variables.translated.map(i, JSONPatch{
  op: 'add',
  path: variables.paths[i] + '/resources/claims/-',
  value: {'name': 'gpushare-' + string(variables.claimOf[i])}
}) +
(size(variables.translated) == 0 || size(variables.unsaid) == 0 ? [] : [JSONPatch{
  op: 'add',
  path: '/metadata/annotations/templates.gpushare.io~1left-out',
  value: variables.unsaid.join(', ')
}])
{{- end }}

{{- define "gpushare.unsaid" -}}
- name: unsaid
  expression: >-
    {{ .claims.unsaid.annotation | toJson }}.filter(k, k in variables.annotations) +
    {{ .claims.unsaid.limit | toJson }}.filter(k, variables.translated.exists(i, k in variables.vendorLimits[i]))
{{- end }}
