"""Looks at everything, judges it, keeps the order of the report."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferway.config import EngineSettings
from inferway.doctor import machine, rules, tokenizers, traffic_rules, transfer_rules
from inferway.doctor.engines import ask_engines
from inferway.doctor.gateway import ask_gateway
from inferway.doctor.rules import CheckResult


async def examine(
    engines: Sequence[EngineSettings],
    cache: Path,
    environment: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
    gateway: str | None = None,
    admin_key: str | None = None,
) -> list[CheckResult]:
    """Return the findings, from the interpreter outwards to the engines, and the alarms and the
    traffic of a running `gateway` (a URL), if one is given. `tls` names who is trusted to be an
    https engine; without it, the system's authorities are."""
    hub, asked, told = await asyncio.gather(
        asyncio.to_thread(machine.check_hub, environment),
        ask_engines(engines, tls),
        ask_gateway(gateway, admin_key),
    )
    tools_come = told is not None and told.has_tools
    inline_system_comes = told is not None and told.has_inline_system
    wanted, token = tokenizers.sources(asked), environment.get("HF_TOKEN") or None
    tried = await asyncio.to_thread(tokenizers.try_tokenizers, wanted, token)
    return [
        machine.check_interpreter(),
        *machine.check_packages(machine.core_dependencies()),
        machine.check_cache(cache),
        hub,
        # a gateway that runs has its port, and needs no other
        *(() if gateway else (machine.check_port(environment),)),
        *(finding for engine in asked for finding in rules.judge_engine(engine, tools_come)),
        *rules.judge_fleet(asked),
        *transfer_rules.judge_transfers(asked),
        *(
            finding
            for tokenizer in tried
            for finding in rules.judge_tokenizer(tokenizer, inline_system_comes)
        ),
        *(traffic_rules.judge_alarms(told, time.time()) if told is not None else ()),
        *(traffic_rules.judge_gateway(told) if told is not None else ()),
        *(transfer_rules.judge_legs(told) if told is not None else ()),
    ]
