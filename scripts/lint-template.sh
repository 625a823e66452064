#!/usr/bin/env bash
# Looks at template.yaml with cfn-lint and, its loops written out, with checkov; .checkov.yaml says what is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv-lint/bin/cfn-lint template.yaml
expanded=$(mktemp --suffix=.json)
trap 'rm -f "$expanded"' EXIT
PYTHONPATH=tests .venv/bin/python -c "
import json, sys
from support.template import TEMPLATE
json.dump(TEMPLATE, sys.stdout)" >"$expanded"
.venv-lint/bin/checkov --config-file .checkov.yaml --file "$expanded" --compact --quiet --skip-download
echo "template.yaml: cfn-lint and checkov find nothing"
