#!/usr/bin/env bash
# Prints docs/cli.md: what the program says about itself. tools/cli_reference.sh build/bin/sinkgrad [--check docs/cli.md]
set -euo pipefail
program=$1

page() {
  echo "# The program"
  echo
  echo "Printed by \`tools/cli_reference.sh build/bin/sinkgrad > docs/cli.md\`; a test holds it to the program."
  local command
  for command in "" $("$program" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]\+\) .*/\1/p'); do
    printf '\n## sinkgrad%s\n\n```text\n' "${command:+ $command}"
    "$program" $command --help
    echo '```'
  done
}

if [ "${2:-}" = --check ]; then
  diff -u "$3" <(page) || { echo "$3 is out of date: tools/cli_reference.sh $program > docs/cli.md" >&2; exit 1; }
else
  page
fi
