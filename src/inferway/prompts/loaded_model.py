"""A model as a `Renderer` keeps it: its tokenizer and templates, and how long they take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from inferway.errors import InferwayError, PanicError, RenderError, panic_as_error
from inferway.model import Reason
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.files.model_files import GPT_OSS, ModelFiles, model_files
from inferway.prompts.files.model_processes import OutsideEncoder
from inferway.prompts.files.raw_files import RawFiles, template_source
from inferway.prompts.media.families import rule_of, sound_rule_of
from inferway.prompts.media.rule import MediaModel
from inferway.prompts.tokenizer.tokenizer import Tokenizer

# Compiled templates that callers of the library have brought, kept for each model.
MAX_GIVEN_TEMPLATES = 32


def load_model(
    raw: RawFiles, outside: Callable[[RawFiles], OutsideEncoder] | None = None
) -> LoadedModel:
    """Raises RenderError: whatever the files make of us, ours or a library's, has their path.
    `outside` as of a Tokenizer."""
    try:
        return LoadedModel(model_files(raw), None if outside is None else partial(outside, raw))
    except InferwayError:
        raise
    except BaseException as raised:
        e = panic_as_error(raised)
        words = e.words if isinstance(e, PanicError) else str(e)[:200]
        raise RenderError(
            f"{raw.path}: the model's files cannot be loaded: {type(e).__name__}: {words}",
            reason=Reason.BAD_TOKENIZER,
        ) from e


class LoadedModel:
    """The tokenizer and the compiled templates of one model."""

    def __init__(
        self, files: ModelFiles, outside: Callable[[], OutsideEncoder] | None = None
    ) -> None:
        self.own_renderer = files.own_renderer
        self.media_first = files.media_first
        self.tokenizer = Tokenizer(files.tokenizer, outside)
        model = MediaModel(
            files.tokenizer.model_config,
            files.processor,
            self._token_id,
            self._ids,
            self.tokenizer.decode,
        )
        self.media_rule, self.sound_rule = rule_of(model), sound_rule_of(model)
        self.render_time = RenderTime()
        self._sources = files.templates
        self._named = files.templates if files.names_templates else {}
        self._processor_source = files.processor_template
        self._compiled: dict[str, ChatTemplate | RenderError] = {}  # or why it cannot be had
        self._compile_given = lru_cache(MAX_GIVEN_TEMPLATES)(ChatTemplate)
        # Compiling takes milliseconds that no request should wait for; a template that does not
        # compile is told to those who use it.
        for source in (*self._sources.values(), self._processor_source):
            if source is not None:
                with contextlib.suppress(RenderError):
                    _ = self._compile(source).refuses_inline_system  # takes as long

    def _ids(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.tokenizer.encode(text, add_special_tokens=False).tolist()
        return ids

    def _token_id(self, token: str) -> int | None:
        ids = self._ids(token)
        return ids[0] if len(ids) == 1 else None

    @property
    def template_names(self) -> list[str]:
        return sorted(self._sources)

    def is_name(self, given: str) -> bool:
        """Return whether `given`, the template of a request, is the name of one of the model's
        templates."""
        return given in self._named

    def template(self, given: str | None = None, *, with_tools: bool = False) -> ChatTemplate:
        """Return the template `given` by name or as Jinja, else the model's own for such a chat."""
        if given is not None:
            source = self._named.get(given, given)
            is_ours = source in self._compiled
            return self._compile(source) if is_ours else self._compile_given(source)
        if not with_tools and self._processor_source is not None:
            return self._compile(self._processor_source)
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            known = f"; named ones: {sorted(self._sources)}" if self._sources else ""
            raise RenderError(f"the model has no chat template{known}", reason=Reason.NO_TEMPLATE)
        return self._compile(self._sources[name])

    def templates_of_chats(self) -> list[ChatTemplate]:
        """Return the model's templates for chats without tools and with them; none if engines do
        not look at them: their renderers in code do not, but for gpt-oss's."""
        found: list[ChatTemplate] = []
        if self.own_renderer not in (None, GPT_OSS):
            return found
        for with_tools in (False, True):
            with contextlib.suppress(RenderError):  # who uses it is told
                found.append(self.template(with_tools=with_tools))
        return found

    def named_template(self, name: str) -> ChatTemplate:
        """Return one of the model's own templates. The settings may name a single one, too."""
        return self._compile(self._sources[name])

    def engine_template(self, given: str) -> ChatTemplate:
        """Return the template that an engine's --chat-template names, compiled once for all."""
        try:
            source = template_source(given, self._sources)
        except RenderError as e:
            raise RenderError(f"chat_template {given!r}: {e}", reason=Reason.BAD_TEMPLATE) from e
        return self._compile(source)

    def _compile(self, source: str) -> ChatTemplate:
        """Once: what does not compile, too, may take seconds."""
        found = self._compiled.get(source)
        if found is None:
            try:
                found = ChatTemplate(source)
            except RenderError as e:
                found = e.with_traceback(None)
            self._compiled[source] = found
        if isinstance(found, RenderError):
            raise RenderError(str(found), reason=found.reason)
        return found


# A moment ago counts more than an hour ago: of what was seen, so much is left with each new chat.
_KEPT = 0.9
# A template may take four times as long for twice as much; nothing is foreseen beyond that.
_TIMES_LARGER = 2


class RenderTime:
    """Predicts how long one model's chats take to render from how long earlier ones took. Any
    thread may call it; of two reports at the same time one may be lost."""

    __slots__ = ("_largest", "_seconds_each")

    def __init__(self) -> None:
        self._largest = 0  # of what was told
        self._seconds_each = 0.0  # the slowest of late

    def took(self, size: int, seconds: float) -> None:
        """Note that a chat of this size, in any unit, has taken so many seconds."""
        self._largest = max(self._largest, size)
        self._seconds_each = max(seconds / size, self._seconds_each * _KEPT)

    def foreseen(self, size: int) -> float:
        """Return the seconds that a chat of this size will take; infinity if it is more than twice
        as large as any chat before."""
        if size > _TIMES_LARGER * self._largest:
            return float("inf")
        return size * self._seconds_each
