"""`GET /server_info`: those parts of vLLM's configuration that a simulated engine has.

vLLM answers it with VLLM_SERVER_DEV_MODE alone. Shapes: vLLM 0.32,
entrypoints/serve/dev/server_info/api_router.py, which writes the configuration's classes out field
by field.
"""

from __future__ import annotations

from typing import Any

from inferway_sim.config import SimulatorConfig
from inferway_sim.kv_transfer import Connector

Json = dict[str, Any]

_CONNECTORS = {
    "nixl": "NixlConnector",
    "nixl-push": "NixlPushConnector",
    "mooncake": "MooncakeConnector",
}
_HOST = {"nixl": "VLLM_NIXL_SIDE_CHANNEL_HOST", "nixl-push": "VLLM_NIXL_SIDE_CHANNEL_HOST"}
_PORT = {
    "nixl": "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "nixl-push": "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "mooncake": "VLLM_MOONCAKE_BOOTSTRAP_PORT",
}


class ServerInfo:
    """Writes the answer; `transfer` knows its side channel's port once that is open."""

    def __init__(self, config: SimulatorConfig, transfer: Connector | None) -> None:
        self._config = config
        self._transfer = transfer

    @property
    def version(self) -> str:
        """The version of vLLM that is simulated."""
        return self._config.vllm_version

    def __call__(self, *, as_json: bool) -> Json:
        config = self._vllm_config()
        return {
            "vllm_config": config if as_json else str(config),
            "vllm_env": {"VLLM_SERVER_DEV_MODE": True, **self._addresses()},
            "system_env": {},
        }

    def _vllm_config(self) -> Json:
        config = self._config
        return {
            "model_config": {
                "model": config.model,
                "tokenizer": config.model,
                "dtype": "torch.bfloat16",
                "max_model_len": config.max_model_len,
                "served_model_name": config.names[0],
            },
            "cache_config": config.cache_config,
            "parallel_config": {
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
                "data_parallel_index": 0,
            },
            "scheduler_config": {"max_num_seqs": config.max_num_seqs},
            "kv_transfer_config": self._kv_transfer_config(),
            **self._speculative_config(),
        }

    def _speculative_config(self) -> Json:
        groups = self._config.kv_groups
        if groups is None or groups.speculation.method == "none":
            return {}
        method, num_tokens = groups.speculation.method, groups.speculation.num_tokens
        return {"speculative_config": {"method": method, "num_speculative_tokens": num_tokens}}

    def _kv_transfer_config(self) -> Json | None:
        transfer = self._transfer
        if transfer is None or transfer.config.connector not in _CONNECTORS:
            return None  # SGLang has a page of its own
        lease = transfer.config.lease_seconds
        return {
            "kv_connector": _CONNECTORS[transfer.config.connector],
            "engine_id": transfer.engine_id,
            "kv_buffer_device": "cpu",
            "kv_role": f"kv_{transfer.config.role}",
            "kv_port": 14579,
            "kv_connector_extra_config": {} if lease == 30 else {"kv_lease_duration": lease},
            "kv_connector_module_path": None,
            "enable_permute_local_kv": False,
            "kv_load_failure_policy": transfer.config.load_failure_policy,
        }

    def _addresses(self) -> Json:
        transfer = self._transfer
        if transfer is None:
            return {}
        connector = transfer.config.connector
        host = {_HOST[connector]: transfer.host} if connector in _HOST else {}
        port = {_PORT[connector]: transfer.port} if connector in _PORT else {}
        return host | port
