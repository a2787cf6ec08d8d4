"""Whether a model's template takes a system message between the others.

vLLM 0.32 finds that out when it starts (entrypoints/anthropic/serving.py,
`_detect_merge_inline_system`): in Jinja's sandbox, without what transformers gives templates, so
that also a template which calls `raise_exception` for another reason, or tells the time, counts as
one that takes none. Messages go by it: what is not taken there is merged into the first message.
"""

from __future__ import annotations

from datetime import datetime

import jinja2

from inferway.errors import HeavyError
from inferway.prompts.chat.bounded_compiler import why_heavy
from inferway.prompts.chat.template_bounds import BoundedContext, plain_environment

_CHAT = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


def refuses_inline_system(source: str) -> bool | None:
    """Return whether the template `source` fails on such a chat; None if that cannot be told in
    this process, or if the engine cannot tell it either. It takes milliseconds: the template is
    compiled."""
    environment = plain_environment(datetime.now)
    try:
        tree = environment.parse(source)
        if why_heavy(source, tree) is not None:
            return None
        template = environment.from_string(tree)
        seen = {**environment.globals, "messages": _CHAT, "add_generation_prompt": False}
        context = BoundedContext(environment, seen, None, template.blocks)
        context.work.concat(template.root_render_func(context))
    except jinja2.TemplateError:
        return True
    except HeavyError:
        return None
    except Exception:  # a template may fail in any way; then vLLM does not start
        return None
    return False
