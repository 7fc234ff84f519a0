"""A cluster of Ray with two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from small_cluster import ON_SECOND


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes; the second has the resource `second`."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes.add_node(num_cpus=8, resources={"second": 100})
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="session")
def worker(cluster: Any) -> Any:
    """An actor on the second node, for tests that do not kill it."""
    from synther_replay.distributed import RayWorker

    return RayWorker(**ON_SECOND)
