"""`python -m app.chat_templates.zygote`: makes a process for each template that is to be rendered.

It has loaded and used all that rendering needs (`rehearse`): a confined process imports nothing.
Knows nothing of templates. Invariant: it reads no tenant's byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.adapters.forking import serve_connections
from app.chat_templates.child import work
from app.chat_templates.messages import Answer, Setup
from app.completions.chat_template import ChatTemplate, ChatTemplateError

# What Jinja and Python load when they are first used, an error's way out included.
_REHEARSAL = (
    "{% for m in messages %}{{ m | pprint }}{{ m.content | wordwrap(3) }}{{ m | tojson }}"
    "{{ strftime_now('%d %b %Y') }}{% generation %}{{ 1.5 }}{% endgeneration %}{% endfor %}"
    "{{ raise_exception('done') }}"
)


def rehearse() -> None:
    setup = msgspec.json.decode(msgspec.json.encode(Setup(_REHEARSAL, {})), type=Setup)
    msgspec.json.encode(msgspec.structs.replace(Answer(text=""), is_last=True))
    template = ChatTemplate(setup.source, setup.special_tokens)
    attempts: list[dict[str, Any]] = [{}, {"messages": []}]
    for variables in attempts:
        try:
            template.render([{"role": "user", "content": "Hello there"}], variables)
        except ChatTemplateError:
            continue
        raise AssertionError("it raises")


def main() -> None:
    rehearse()
    serve_connections(work)


if __name__ == "__main__":
    main()
