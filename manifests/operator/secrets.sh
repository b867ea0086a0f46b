#!/bin/sh
# Make what kustomization.yaml puts into the operator's Secrets: the webhook's certificate, for ten
# years, and the token that Alertmanager must present. What is there already stays. Needs openssl.
set -eu
umask 077
mkdir -p "$(dirname "$0")/secrets"
cd "$(dirname "$0")/secrets"

if [ ! -s token ]; then
    token=$(openssl rand -hex 24)
    printf %s "$token" >token
fi

if [ ! -s tls.crt ]; then
    host=macroserve-operator.macroserve-system.svc
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=macroserve-operator \
        -addext "subjectAltName=DNS:$host,DNS:$host.cluster.local" \
        -keyout tls.key -out tls.crt
fi
cp tls.crt ca.crt

ca=$(openssl base64 -A <ca.crt)
cat >ca-bundle.yaml <<YAML
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: macroserve-operator
webhooks:
  - name: macroinstances.macroserve.io
    clientConfig: {caBundle: $ca}
  - name: macroinstances-scale.macroserve.io
    clientConfig: {caBundle: $ca}
YAML
