{{/* Labels of every object of the chart. */}}
{{- define "macroserve.labels" -}}
app.kubernetes.io/name: macroserve-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: macroserve
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What tells the operator's pods from the chart's other pods. */}}
{{- define "macroserve.selector" -}}
app.kubernetes.io/name: macroserve-operator
app.kubernetes.io/component: operator
{{- end }}

{{/* An image's full name. Of (list . image). */}}
{{- define "macroserve.image" -}}
{{- $image := last . }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (first .).Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "macroserve.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "macroserve.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where pods with the operator's image are scheduled, and how they get it. */}}
{{- define "macroserve.podPlacement" -}}
{{- with .Values.operator.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "macroserve.webhookSecret" -}}
{{- if eq .Values.webhook.certificate.source "Secret" -}}
{{ required "webhook.certificate.secretName must name a Secret of type kubernetes.io/tls when webhook.certificate.source is Secret." .Values.webhook.certificate.secretName }}
{{- else -}}
macroserve-operator-webhook
{{- end }}
{{- end }}

{{- define "macroserve.alertSecret" -}}
{{ .Values.alerts.existingSecret | default "macroserve-operator-alerts" }}
{{- end }}

{{/* "true" if the monitoring object is rendered. Of (list . setting); setting: true, false or auto. */}}
{{- define "macroserve.monitored" -}}
{{- $setting := last . | toString }}
{{- $known := (first .).Capabilities.APIVersions.Has "monitoring.coreos.com/v1" }}
{{- if or (eq $setting "true") (and (eq $setting "auto") $known) -}}
true
{{- end }}
{{- end }}

{{- define "macroserve.monitoringLabels" -}}
{{ include "macroserve.labels" . }}
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A selector of the namespaces whose MacroInstances are reviewed; nothing for all. */}}
{{- define "macroserve.reviewedNamespaces" -}}
{{- $selector := deepCopy .Values.webhook.namespaceSelector }}
{{- with .Values.operator.namespaces }}
{{- $own := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" . }}
{{- $_ := set $selector "matchExpressions" (append ($selector.matchExpressions | default list) $own) }}
{{- end }}
{{- with $selector }}
{{- toYaml . }}
{{- end }}
{{- end }}
