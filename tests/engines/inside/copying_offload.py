"""vLLM's offloading on its CPU platform: copies tensors, where vLLM's own worker needs a GPU.

Imported by the engine, from its PYTHONPATH. Scheduler, manager, metrics and KV events are vLLM's
own and unchanged. For one KV group, and chunks of one block.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]
    def __init__(self, kv_caches: Any, num_chunks: int) -> None:
        self._used = {ref.tensor_idx for ref in kv_caches.group_data_refs[0]}
        caches = kv_caches.tensors
        self._here = [c.tensor.view(torch.int8).view((-1, c.page_size_bytes)) for c in caches]
        self._there = [
            torch.zeros((num_chunks, c.page_size_bytes), dtype=torch.int8) for c in caches
        ]
        self._done: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._there, dst_spec, self._here, src_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._here, dst_spec, self._there, src_spec)

    def get_finished(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: Collection[int]) -> None:
        """Nothing is under way."""

    def _copy(self, job_id: int, to: Any, to_spec: Any, of: Any, of_spec: Any) -> bool:
        began, size = time.monotonic(), 0
        to_ids = torch.from_numpy(to_spec.block_ids.astype("int64"))
        of_ids = torch.from_numpy(of_spec.block_ids.astype("int64"))
        for i in self._used:
            to[i][to_ids] = of[i][of_ids]
            size += to_ids.numel() * to[i].shape[1]
        self._done.append(TransferResult(job_id, True, size, time.monotonic() - began))
        return True


class CopyingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    _worker: Any

    def get_worker(self, kv_caches: Any) -> CopyingWorker:
        if self._worker is None:
            assert len(kv_caches.group_data_refs) == 1
            assert self.blocks_per_chunk == 1
            self._worker = CopyingWorker(kv_caches, self.num_chunks)
        worker: CopyingWorker = self._worker
        return worker
