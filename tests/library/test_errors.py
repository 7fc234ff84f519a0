"""Errors that mean something beyond their type."""

import pytest
import torch

from synther_replay.errors import is_out_of_memory


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_running_out_of_memory_is_recognised_by_its_text(text):
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(ValueError(text))


def test_running_out_of_memory_is_recognised_by_its_type():
    assert is_out_of_memory(torch.OutOfMemoryError("full"))
    assert is_out_of_memory(MemoryError())


@pytest.mark.parametrize("text", ["device-side assert triggered", "CUBLAS_STATUS_EXECUTION_FAILED", "size mismatch"])
def test_other_errors_are_not_about_memory(text):
    assert not is_out_of_memory(RuntimeError(text))
