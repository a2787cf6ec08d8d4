"""Settings of engines: of those that are listed, of where others are found, and of models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

from inferway.config.setting import DISCOVERY, PROMPTS, Count, Flag, Port
from inferway.errors import ConfigError
from inferway.model import ROLE

UNIX = "unix:"  # before a socket's path, where else a URL or a host stands

# A field is a paragraph: its type and flag, what is said of it, its default.
# fmt: off


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one engine. Whatever is absent, except `url`, is asked of the engine
    itself."""

    url: Annotated[str,
        "`http://HOST:PORT` or `https://HOST:PORT`, with a path behind it if the engine is behind a"
        " proxy that wants one (`http://HOST/prefix`); or `unix:/PATH` for the socket of an engine"
        " on this machine (vLLM's `--uds`)."]
    name: Annotated[str | None,
        "Unique name of the engine in headers, metrics and logs.  [default: `HOST:PORT`, or the"
        " socket's file name]"] = None
    events: Annotated[str | None,
        "Socket of the engine's KV events, `tcp://HOST:PORT`; with `tcp://*:PORT` the gateway binds"
        " and the engine connects; `http://HOST:PORT/kv_cache_events` is [asked, of"
        " TensorRT-LLM](guides/vllm.md#kv-events-of-sglang-and-tensorrt-llm).  [default:"
        " asked]"] = None
    replay: Annotated[str | None, "Socket for the replay of KV events.  [default: asked]"] = None
    block_size: Annotated[Count | None, "Tokens per block.  [default: asked]"] = None
    speculation: Annotated[Literal["none", "ngram", "eagle", "mtp"] | None,
        "How the engine drafts tokens; with `eagle` and `mtp`, vLLM computes the last block that a"
        " prompt matches again ([caches of several kinds](reliability.md#caches-of-several-kinds))."
        "  [default: found out]"] = None
    prefix_match_unit: Annotated[Count | None,
        "Tokens of a hash, if less than a block: `--prefix-match-unit`.  [default: asked]"] = None
    attention_chunk_size: Annotated[Count | None,
        "Tokens of a chunk of local attention, as in the model's configuration (Llama 4)."] = None
    api_key_env: Annotated[str | None,
        "Name of the environment variable with the engine's API key."] = None
    labels: Annotated[dict[str, str],
        "Labels for filters and scorers, like the Kubernetes labels of a pod: `llm-d.ai/role:"
        " prefill`; as a flag: `--engine URL,label.llm-d.ai/role=prefill`."] = {}
    role: Annotated[Literal["prefill", "decode", "both"] | None,
        "Short for the label `llm-d.ai/role`. Without it the engine does what its connector can."
        ] = None
    kv_connector: Annotated[Literal["nixl", "nixl-push", "mooncake", "sglang"] | None,
        "How the engine hands KV blocks to others ([what the engine"
        " tells](guides/prefill-decode.md#what-the-engines-tell)).  [default: asked]"] = None
    kv_bootstrap: Annotated[str | None,
        "`HOST:PORT` of the engine's bootstrap server, for Mooncake and SGLang; required there if"
        " `kv_connector` is given, except with `role: decode`.  [default: asked]"] = None
    kv_host: Annotated[str | None,
        "Host of the engine's NIXL side channel, if it is not the host of its URL."] = None

    @property
    def label(self) -> str:
        """The engine's name in headers, metrics and logs."""
        if self.url.startswith(UNIX):
            return self.name or self.url.rpartition("/")[2]
        return self.name or engine_address(self.url)

    @property
    def http_url(self) -> str:
        """The URL that paths are appended to. A Unix socket's path stands in place of the host,
        with its slashes as %2F."""
        if self.url.startswith(UNIX):
            return "http://" + quote(self.url.removeprefix(UNIX), safe="")
        return self.url.rstrip("/")

    @property
    def all_labels(self) -> dict[str, str]:
        """The engine's labels, with the one that `role` is short for."""
        return self.labels if self.role is None else {**self.labels, ROLE: self.role}

    def authorization(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the header with the engine's API key. Raises ConfigError if it is unset."""
        key = secret_in(self.api_key_env, f"engine {self.label}: api_key_env")
        return ((b"authorization", b"Bearer " + key.encode()),) if key else ()


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one model's prompts: flags of its engines that cannot be seen from outside.
    The probe (prompts/fidelity.py) says when one of them is missing."""

    tokenizer: Annotated[str | None, Flag("--tokenizer MODEL=PATH", PROMPTS),
        "Use this tokenizer for the model's prompts: a directory, a tokenizer.json or a hub id."
        " Repeat the flag for more models.",
        "vLLM: `--tokenizer`. Absent: as the engine reports."] = None
    chat_template: Annotated[str | None, Flag("--chat-template MODEL=PATH", PROMPTS),
        "Use this chat template, a .jinja file, for the model's prompts, as its engines do. Repeat"
        " the flag for more models.",
        "The key also takes Jinja source, or the name of one of the model's own templates. vLLM:"
        " `--chat-template`. Absent: the model's own."] = None
    chat_template_content_format: Annotated[Literal["auto", "string", "openai"],
        "Form in which the template gets a message's content; `auto` detects it from the template."
        " vLLM: `--chat-template-content-format`."] = "auto"
    chat_template_kwargs: Annotated[dict[str, Any],
        "Arguments of the template; arguments in a request take precedence. vLLM:"
        " `--default-chat-template-kwargs`."] = {}
    exclude_tools_when_tool_choice_none: Annotated[bool,
        "The template does not get the tools of requests with `tool_choice: none`. vLLM:"
        " `--exclude-tools-when-tool-choice-none`."] = False
    reasoning_effort_map: Annotated[dict[str, str],
        "Map from a request's `reasoning_effort` to the one that the template gets instead. vLLM"
        " 0.33: `--reasoning-effort-map`."] = {}


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines are the ready pods of an InferencePool, or of a selector."""

    pool: Annotated[str | None, Flag("--pool-name NAME", DISCOVERY),
        "Use the ready pods of this Kubernetes InferencePool as engines."] = None
    namespace: Annotated[str | None, Flag("--pool-namespace NAMESPACE", DISCOVERY),
        "Look for the pool, or for the selector's pods, in this namespace.  [default: $NAMESPACE,"
        " or the own pod's]",
        "Where neither is known it is `default`."] = None
    group: Annotated[str, Flag("--pool-group GROUP", DISCOVERY),
        "Look for the pool in this API group.",
        "`inference.networking.x-k8s.io` is supported, too."] = "inference.networking.k8s.io"
    selector: Annotated[dict[str, str] | str, Flag("--endpoint-selector SELECTOR", DISCOVERY),
        "Use the pods that this label selector selects, instead of a pool. It is written as for"
        " kubectl: a=b,c in (d,e),!f.",
        "The key also takes a map of labels."] = {}
    ports: Annotated[list[Port], Flag("--endpoint-target-ports PORT,…", DISCOVERY),
        "Connect to the selector's pods at these ports; each port is an engine."] = []
    api: Annotated[str | None, Flag("--kube-api URL", DISCOVERY),
        "Ask the Kubernetes API server at this URL. Outside of a pod it is that of `kubectl proxy`."
        "  [default: as each pod is told]"] = None


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sources of engines beside the list of the settings; these engines come and go while the
    gateway runs."""

    file: Annotated[str | None, Flag("--engines-file FILE", DISCOVERY),
        "Read engines from this YAML or JSON file, and again whenever it changes.",
        "It is a list like `engines`, or a map with the key `engines`; the gateway checks it every"
        " second."] = None
    dns: Annotated[list[str], Flag("--engines-dns URL", DISCOVERY),
        "Use every address of the host in http://NAME:PORT as an engine, and follow changes in DNS."
        " Repeat the flag for more names."] = []
    ray: Annotated[list[str], Flag("--engines-ray APP/DEPLOYMENT", DISCOVERY),
        "Use the engines of this Ray Serve deployment's replicas, in the cluster of $RAY_ADDRESS,"
        " else of the one on this machine; needs inferway[ray]. Repeat the flag for more.",
        "See [its guide](guides/ray.md#a-gateway-in-front-of-rays-engines)."] = []
    kubernetes: Annotated[KubernetesSettings | None, "Engines in Kubernetes."] = None

    @property
    def is_any(self) -> bool:
        """True if there is any source beside the list."""
        return bool(self.file is not None or self.dns or self.ray or self.kubernetes is not None)

    def why_none_answers(self, asked: Sequence[str] = ()) -> str:
        """Return in words where engines are looked for, or which URLs were asked, and what to
        do."""
        if asked:
            return f"no engine has answered yet; asked {', '.join(asked)}; see inferway doctor"
        places = [] if self.file is None else [f"the file {self.file} (discovery.file)"]
        places += [f"the addresses of {url} (discovery.dns)" for url in self.dns]
        places += [f"the Ray deployment {name} (discovery.ray)" for name in self.ray]
        if (kubernetes := self.kubernetes) is not None:
            what = f"InferencePool {kubernetes.pool}" if kubernetes.pool else "selector"
            pods = f"the ready pods of the {what} in the namespace {kubernetes.namespace or 'own'}"
            places.append(f"{pods} (discovery.kubernetes)")
        if not places:
            return "no engine is known: none is given; give one, as inferway serve http://HOST:PORT"
        where = ", ".join(places)
        return f"no engine is known: none is in {where}; start engines there, or give their URLs"


def engine_address(url: str) -> str:
    """Return an engine's URL without its scheme and a slash at its end."""
    parts = urlsplit(url)
    return parts.netloc + parts.path.rstrip("/")


def unix_path(host: str) -> str | None:
    """The path that stands where a host does (EngineSettings.http_url); None: it is a host."""
    return unquote(host) if host.startswith("%2F") else None


def secret_in(variable: str | None, key: str) -> str | None:
    """Return the secret in the environment variable that `key` names, or None if it names none.
    Raises ConfigError if it is unset."""
    if variable is None:
        return None
    secret = os.environ.get(variable)
    if not secret:
        raise ConfigError(
            f"{key} {variable!r} is not set in the environment; export it, or leave it out"
        )
    return secret
