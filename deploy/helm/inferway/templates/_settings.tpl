{{/* The settings file of a component: its `config`, and what other values say of the same things. */}}

{{- define "inferway.settings" -}}
{{- $values := index .root.Values .component -}}
{{- $settings := deepCopy $values.config -}}
{{- include "inferway.checkSettings" (dict "place" (printf "%s.config" .component) "settings" $settings) -}}
{{- if and .root.Values.engines.fromPods (not (hasKey $settings "discovery")) -}}
{{- $found := dict "namespace" (include "inferway.engineNamespace" .root) -}}
{{- if eq .component "picker" -}}
{{- $_ := set $found "pool" (include "inferway.poolName" .root) -}}
{{- else -}}
{{- $_ := set $found "selector" (include "inferway.engineSelector" .root | fromYaml) -}}
{{- $_ := set $found "ports" .root.Values.engines.ports -}}
{{- end -}}
{{- $_ := set $settings "discovery" (dict "kubernetes" $found) -}}
{{- end -}}
{{- if not (or $settings.discovery $settings.engines) -}}
{{- fail (printf "engines.fromPods: false, and %s.config names no engine; give it `engines` or `discovery`, or set engines.fromPods: true" .component) -}}
{{- end -}}
{{- include (printf "inferway.%sSettings" .component) (dict "root" .root "values" $values "settings" $settings) -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "inferway.gatewaySettings" -}}
{{- if eq (include "inferway.tellsPeers" .values) "true" -}}
{{- $name := printf "%s-admin.%s.svc:%d" (include "inferway.name" (dict "root" .root "component" "gateway")) .root.Release.Namespace (int .values.peersPort) -}}
{{- $_ := set .settings "peers" (dict "addresses" (list $name)) -}}
{{- end -}}
{{- if .values.tls.secretName -}}
{{- $_ := set .settings "tls_cert" "/etc/inferway-tls/tls.crt" -}}
{{- $_ := set .settings "tls_key" "/etc/inferway-tls/tls.key" -}}
{{- end -}}
{{- if .values.adminKey.secretName -}}
{{- $_ := set .settings "admin_key_env" "ADMIN_KEY" -}}
{{- end -}}
{{- if .values.apiKeys.secretName -}}
{{- $_ := set .settings "api_keys" "/etc/inferway-keys/keys.yaml" -}}
{{- end -}}
{{- if .values.tenantSalt.secretName -}}
{{- $_ := set .settings "salt_per_tenant_env" "TENANT_SALT" -}}
{{- end -}}
{{- end -}}

{{/* Whether the chart says how the pods of a gateway find each other: the headless Service names them all. */}}
{{- define "inferway.tellsPeers" -}}
{{- and (gt (int .peersPort) 0) (not (hasKey .config "peers")) -}}
{{- end -}}

{{- define "inferway.pickerSettings" -}}
{{- if .values.tls.secretName -}}
{{- $_ := set .settings.picker "cert_path" "/etc/inferway-tls" -}}
{{- $_ := set .settings.picker "reload_cert" true -}}
{{- end -}}
{{- end -}}

{{/* What a pod needs so that probes and Services reach it. */}}
{{- define "inferway.checkSettings" -}}
{{- if not (has .settings.host (list "0.0.0.0" "::")) -}}
{{- fail (printf "%s.host: %v: nobody reaches a pod there; expected 0.0.0.0 or ::" .place .settings.host) -}}
{{- end -}}
{{- range $key := list "port" "admin_port" -}}
{{- if and (hasKey $.settings $key) (eq (int (index $.settings $key)) 0) -}}
{{- fail (printf "%s.%s: 0: a Service needs to know the port; expected 1 to 65535" $.place $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* http or https, of a component's HTTP ports. */}}
{{- define "inferway.scheme" -}}
{{- if (include "inferway.settings" . | fromYaml).tls_cert -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* Name of the port of /metrics and /admin/*. */}}
{{- define "inferway.adminPortName" -}}
{{- if eq .component "picker" -}}metrics
{{- else if .root.Values.gateway.config.admin_port -}}admin
{{- else -}}http
{{- end -}}
{{- end -}}

{{- define "inferway.adminPort" -}}
{{- $config := (index .root.Values .component).config -}}
{{- int (default $config.port $config.admin_port) -}}
{{- end -}}
