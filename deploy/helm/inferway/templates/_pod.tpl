{{/* What the pods of both components have in common. */}}

{{- define "inferway.podMetadata" -}}
{{- $labels := merge (include "inferway.labels" . | fromYaml) .root.Values.pod.labels -}}
{{- include "inferway.checkPodLabels" (dict "root" .root "labels" $labels) -}}
{{- $annotations := dict "checksum/settings" (include "inferway.settings" . | sha256sum) -}}
{{- if and .root.Values.metrics.annotations (not .root.Values.metrics.serviceMonitor.enabled) -}}
{{- $_ := set $annotations "prometheus.io/scrape" "true" -}}
{{- $_ := set $annotations "prometheus.io/port" (include "inferway.adminPort" .) -}}
{{- $_ := set $annotations "prometheus.io/scheme" (include "inferway.scheme" .) -}}
{{- end -}}
labels:
  {{- toYaml $labels | nindent 2 }}
annotations:
  {{- toYaml (merge $annotations .root.Values.pod.annotations) | nindent 2 }}
{{- end -}}

{{/* Pods of ours with the labels of engines would be asked as engines. */}}
{{- define "inferway.checkPodLabels" -}}
{{- $differs := false -}}
{{- range $name, $value := include "inferway.engineSelector" .root | fromYaml -}}
{{- if ne $value (toString (get $.labels $name)) -}}
{{- $differs = true -}}
{{- end -}}
{{- end -}}
{{- if and .root.Values.engines.fromPods (not $differs) -}}
{{- fail (printf "engines.selector: %s: the release's own pods have these labels, and would be engines; give labels that only engines have" (include "inferway.engineSelector" .root | replace "\n" ", ")) -}}
{{- end -}}
{{- end -}}

{{- define "inferway.podSpec" -}}
{{- $values := index .root.Values .component -}}
{{- $pod := .root.Values.pod -}}
serviceAccountName: {{ include "inferway.serviceAccountName" . }}
automountServiceAccountToken: {{ eq (include "inferway.followsPods" .) "true" }}
enableServiceLinks: false
# longer than timeouts.drain and the preStop hook together
terminationGracePeriodSeconds: {{ add 10 (ceil (dig "timeouts" "drain" 30 $values.config)) }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int $pod.user }}
  runAsGroup: {{ int $pod.user }}
  fsGroup: {{ int $pod.user }}
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if $pod.affinity }}
  {{- toYaml $pod.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "inferway.selectorLabels" . | nindent 12 }}
  {{- end }}
{{- with $pod.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
- name: settings
  configMap: {name: {{ include "inferway.name" . }}}
- name: cache
  emptyDir: {sizeLimit: {{ $pod.cacheSize }}}
- name: scratch
  emptyDir: {}
{{- with $values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if eq .component "gateway" }}
{{- with $values.apiKeys }}
{{- if .secretName }}
- name: api-keys
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: keys.yaml}]
{{- end }}
{{- end }}
{{- end }}
{{- with $pod.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferway.container" -}}
{{- $values := index .root.Values .component -}}
image: {{ include "inferway.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml $values.resources | nindent 2 }}
env:
{{- range $name, $from := .root.Values.secretEnv }}
{{- if $from }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.name }}, key: {{ $from.key }}, optional: {{ default false $from.optional }}}}
{{- end }}
{{- end }}
{{- if eq .component "gateway" }}
{{- range $name, $from := dict "ADMIN_KEY" $values.adminKey "TENANT_SALT" $values.tenantSalt }}
{{- if $from.secretName }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secretName }}, key: {{ $from.key }}}}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $value := .root.Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
volumeMounts:
- {name: settings, mountPath: /etc/inferway, readOnly: true}
- {name: cache, mountPath: /home/inferway}  # tokenizers
- {name: scratch, mountPath: /tmp}
{{- if $values.tls.secretName }}
- {name: tls, mountPath: /etc/inferway-tls, readOnly: true}
{{- end }}
{{- if eq .component "gateway" }}
{{- if $values.apiKeys.secretName }}
- {name: api-keys, mountPath: /etc/inferway-keys, readOnly: true}
{{- end }}
{{- end }}
{{- with .root.Values.pod.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
