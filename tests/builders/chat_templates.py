"""Chat templates as models have them, and some that mean harm. Data only."""

from __future__ import annotations

# SmolLM2's own: ChatML, with a system message where there is none.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# In the manner of Llama 3.1: a date, blocks over several lines, tools, filters.
LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- set kind = namespace(name=message.role) %}
    {%- if message.tool_calls is defined %}{%- set kind.name = 'call' %}{%- endif %}
    {{- '<|start_header_id|>' + kind.name + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# In the manner of Gemma: no system message, turns that alternate, loop controls.
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if not message['content'] %}{% continue %}{% endif %}
{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}
{% else %}{{ '<start_of_turn>user\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

SPIN = "{% for i in range(99999) %}{% for j in range(99999) %}{% if i < 0 %}{% endif %}{% endfor %}"
SPIN += "{% endfor %}"
HOARD = "{{ messages[0].content * 2000000000 }}"

HOSTILE = {
    "reaches for classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed"),
    "reaches for globals": ("{{ lipsum.__globals__['os'].listdir('/') }}", "failed"),
    "runs a command": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "failed"),
    "reads a file": ("{% include '/etc/passwd' %}", "failed"),
    "imports a module": ("{{ lipsum(1) }}", "failed"),
    "changes the messages": ("{{ messages.append(1) }}", "failed"),
    "recurses": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed"),
    "is nested too deeply": ("{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "failed"),
    "loops for ever": (SPIN, "time"),
    "computes for ever": ("{{ (messages | length + 9) ** 100000000 }}", "time"),
    "computes for ever to compile": ("{{ 10 ** 1000000000 }}", "time"),
    "allocates gigabytes": (HOARD, "memory"),
    "allocates gigabytes to compile": ("{{ 'a' * 2000000000 }}", "memory"),
    "says too much": ("{{ messages[0].content * 20000 }}", "too_long"),
}
"""What it does: (the template, what comes of it in the sandbox)."""

SWITCH = (
    "{% set said = messages[-1].content %}"
    "{% if said == 'refuse' %}{{ raise_exception('I do not like it') }}"
    "{% elif said == 'fail' %}{{ said + 1 }}"
    "{% elif said == 'spin' %}" + SPIN + "{% elif said == 'hoard' %}{{ said * 2000000000 }}"
    "{% elif said == 'babble' %}{{ said * 20000 }}"
    "{% else %}[{{ said }}]{% endif %}"
)
"""Does what the last message says."""
