{{/* Names and labels. What takes a component takes (dict "root" $ "component" "gateway" | "picker"). */}}

{{- define "inferway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The gateway has the release's name, the picker one that ends in -epp. */}}
{{- define "inferway.name" -}}
{{- include "inferway.fullname" .root -}}
{{- if eq .component "picker" -}}-epp{{- end -}}
{{- end -}}

{{- define "inferway.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The chart's own labels win over those of values: selectors need them. */}}
{{- define "inferway.labels" -}}
{{- $labels := include "inferway.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $labels .root.Values.commonLabels) -}}
{{- end -}}

{{- define "inferway.serviceAccountName" -}}
{{- if .root.Values.serviceAccount.create -}}
{{- include "inferway.name" . -}}
{{- else -}}
{{- required "serviceAccount.name: empty; name the ServiceAccount that exists, or set serviceAccount.create: true" .root.Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "inferway.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The engines' pods. */}}
{{- define "inferway.engineSelector" -}}
{{- toYaml (default (dict "app" "vllm") .Values.engines.selector) -}}
{{- end -}}

{{- define "inferway.engineNamespace" -}}
{{- default .Release.Namespace .Values.engines.namespace -}}
{{- end -}}

{{- define "inferway.poolName" -}}
{{- default (include "inferway.fullname" .) .Values.picker.pool.name -}}
{{- end -}}

{{/* Whether a component asks the API server for engines: "true", or nothing. */}}
{{- define "inferway.followsPods" -}}
{{- if dig "discovery" "kubernetes" nil (include "inferway.settings" . | fromYaml) -}}true{{- end -}}
{{- end -}}
