{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /*
Not empty if the objects for Prometheus Operator are rendered. In a file of values, on and
off without quotes are true and false.
*/}}
{{- define "gpushare.operator" -}}
{{- $kind := "monitoring.coreos.com/v1/ServiceMonitor" }}
{{- $wanted := toString .Values.monitoring.prometheusOperator }}
{{- $served := and (eq $wanted "auto") (.Capabilities.APIVersions.Has $kind) }}
{{- if or $served (has $wanted (list "on" "true")) }}yes{{ end }}
{{- end }}

{{- /*
The webhook's certificate: `authority` for each caBundle, and the `secret` if Helm makes
it. Included once, where both are written: each call would make another certificate.
A Secret that is there is kept, since pods and API server use it.
*/}}
{{- define "gpushare.certificate" -}}
{{- if eq .Values.webhook.certificate.source "given" }}
authority: {{ .Values.webhook.certificate.caBundle | quote }}
{{- else if eq .Values.webhook.certificate.source "helm" }}
{{- $name := "gpushare-webhook-tls" }}
{{- $data := (lookup "v1" "Secret" "kube-system" $name).data }}
{{- if not (and $data (get (default dict $data) "ca.crt")) }}
{{- $days := 3650 }}
{{- $service := "gpushare-webhook.kube-system.svc" }}
{{- $authority := genCA "gpushare-webhook-ca" $days }}
{{- $made := genSignedCert $service nil (list $service) $days $authority }}
{{- $data = dict "ca.crt" (b64enc $authority.Cert) "tls.crt" (b64enc $made.Cert) "tls.key" (b64enc $made.Key) }}
{{- end }}
authority: {{ index $data "ca.crt" }}
secret:
  apiVersion: v1
  kind: Secret
  metadata:
    name: {{ $name }}
    namespace: kube-system
    labels:
      app.kubernetes.io/part-of: gpushare
      app.kubernetes.io/name: gpushare-webhook
  type: kubernetes.io/tls
  data:
    {{- range $key := list "ca.crt" "tls.crt" "tls.key" }}
    {{ $key }}: {{ index $data $key }}
    {{- end }}
{{- end }}
{{- end }}
