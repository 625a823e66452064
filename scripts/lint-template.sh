#!/usr/bin/env bash
# Looks at template.yaml with cfn-lint and checkov; .checkov.yaml says what is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv-lint/bin/cfn-lint template.yaml
.venv-lint/bin/checkov --config-file .checkov.yaml --file template.yaml --compact --quiet --skip-download
echo "template.yaml: cfn-lint and checkov find nothing"
