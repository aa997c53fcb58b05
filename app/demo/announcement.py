"""What `tenfold demo` prints when it is ready: lines to paste into another shell.

Knows nothing of processes. Invariant: every line works as it stands, in any folder.
"""

from __future__ import annotations

from pathlib import Path

from app.demo.tenants import ADAPTER, DemoFile

QUESTION = "I bought a lamp last week. Can I return it?"

ANNOUNCEMENT = """
Tenfold is ready. Both tenants call a model of the same name; each gets its own.
{curls}
# both, with the OpenAI SDK
{bin}/python - <<'PY'
from openai import OpenAI
for tenant, key in {keys!r}.items():
    client = OpenAI(base_url="{base_url}/v1", api_key=key)
    stream = client.chat.completions.create(
        model="{model}", stream=True, max_tokens=80, temperature=0,
        messages=[{{"role": "user", "content": "{question}"}}],
    )
    print(f"\\n{{tenant}}: ", end="")
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
PY

# as the operator
{bin}/tenfold admin --data-dir {data_dir} adapter list --tenant acme

Keys are in {data_dir}/demo.json, logs in {data_dir}/logs.
The operators' API is {admin_url}/admin/v1. Ctrl-C stops everything."""

CURL = """
# {tenant}
curl -s {base_url}/v1/chat/completions \\
  -H 'Authorization: Bearer {api_key}' -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "max_tokens": 80, "temperature": 0,
       "messages": [{{"role": "user", "content": "{question}"}}]}}'
"""


def announcement(demo: DemoFile, data_dir: Path, bin_dir: Path) -> str:
    """The text. `bin_dir` holds the installation's `python` and `tenfold`."""
    curls = "".join(
        CURL.format(
            tenant=name,
            base_url=demo.base_url,
            api_key=tenant.api_key,
            model=ADAPTER,
            question=QUESTION,
        )
        for name, tenant in demo.tenants.items()
    )
    return ANNOUNCEMENT.format(
        curls=curls,
        keys={name: tenant.api_key for name, tenant in demo.tenants.items()},
        base_url=demo.base_url,
        admin_url=demo.admin_url,
        model=ADAPTER,
        question=QUESTION,
        data_dir=data_dir,
        bin=bin_dir,
    )
