"""Apply a function to items in local processes or on a Ray cluster, so that interrupted commands can be resumed.

Either the function writes complete files atomically, or the arrays that it returns are cached here; items whose files
exist are not processed again. If a process or a node dies, only the items in progress are lost: other processes redo
them, and repeating the command processes the remaining items. Results do not depend on where the function runs.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from labelkit.algorithms.row_blocks import StoredRows, rows_per_block
from labelkit.cache import cache_files, read_arrays, write_arrays
from labelkit.data.exit_with_parent import exit_with_parent, hide_main_module
from labelkit.errors import ConfigError, LabelkitError, ResourceError
from labelkit.options.memory import ProcessesConfig
from labelkit.progress import current_progress

Item = TypeVar("Item")
Part = TypeVar("Part", StoredRows, range)
Result = TypeVar("Result")

#: Number of blocks of rows per call, so that a call takes seconds.
_BLOCKS_PER_CALL = 32
#: Number of consecutive times that processes may die without completing an item.
_MAX_DEATHS = 3
_RETRIES = 5
_SECONDS_TO_CONNECT = 10


def map_parallel(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    processes: int,
    ray_address: str | None = None,
    gpus: bool = False,
) -> Iterator[tuple[Item, Result]]:
    """Apply a function to each item in worker processes or on a Ray cluster; yield results as they are completed.

    Args:
        function: module-level function, or a ``partial`` of one; called in other processes.
        items: hashable items, one per call.
        processes: number of local processes, >= 1.
        ray_address: address of a Ray cluster for ``ray.init``, or ``local`` to start a cluster here. All nodes must
            see the same files under the same paths.
        gpus: assign local process k to GPU k (modulo the number of GPUs); on Ray, each call gets one GPU and its share
            of the node's cores.

    Raises:
        LabelkitError: a call raised this error; the other calls are stopped.
        ConfigError: Ray is not installed, or the cluster cannot be reached.
        ResourceError: processes die repeatedly.
    """
    if ray_address is not None:
        return _run_on_ray(function, items, ray_address, gpus)
    return _run_in_processes(function, items, processes, gpus)


def apply_to_rows(
    function: Callable[[StoredRows], Result],
    rows: StoredRows,
    config: ProcessesConfig,
    name: str,
    *,
    values_per_row: int = 0,
    resumable: bool = False,
) -> Iterator[Result]:
    """Split rows into consecutive parts, and apply a function to each part as ``apply_to_parts`` does.

    Parts depend only on shapes and end at block boundaries, so results depend neither on where they are computed nor on
    the shards of the store. There is at least one part, which may be empty.

    Args:
        function: module-level function, or a ``partial`` of one.
        rows: rows of a store; worker processes read them from the store.
        config: where the function runs.
        name: task name for progress.
        values_per_row: number of values per row in temporary blocks; default: the row length.
        resumable: see ``apply_to_parts``.
    """
    step = _BLOCKS_PER_CALL * rows_per_block(values_per_row or rows.shape[1])
    parts = [rows.subset(slice(start, min(start + step, len(rows)))) for start in range(0, max(1, len(rows)), step)]
    return apply_to_parts(function, parts, config, name, resumable=resumable, whole=rows)


def apply_to_parts(
    function: Callable[[Part], Result],
    parts: list[Part],
    config: ProcessesConfig,
    name: str,
    *,
    resumable: bool = False,
    whole: object = None,
) -> Iterator[Result]:
    """Apply a function to each part, in this or other processes as the options specify; yield the results in order.

    Args:
        function: module-level function, or a ``partial`` of one or of a method; its arguments are sent with each part.
        parts: rows, or ranges of rows.
        config: where the function runs.
        name: task name for progress, which counts rows.
        resumable: cache the results (arrays or tuples of arrays) until all parts are done, so that a repeated command
            does not recompute them.
        whole: the object that was split into parts, by which cached results are identified; default: ``parts``.
    """
    parts, total = list(parts), sum(map(len, parts))
    files: dict[Part, Path] = {}
    if resumable and len(parts) > 1:
        all_arguments = ([len(part) for part in parts], parts if whole is None else whole)
        files = dict(zip(parts, cache_files("parts", function, all_arguments, len(parts)), strict=True))
    done = {part: read_arrays(file) for part, file in files.items()}
    found: dict[Part, Any] = {part: got if len(got) > 1 else got[0] for part, got in done.items() if got is not None}
    left = [part for part in parts if part not in found]
    if found:
        current_progress().message(f"{len(found)} of {len(parts)} parts are reused from an earlier, interrupted run")
    elsewhere = config.ray_address is not None or min(config.processes, len(left)) > 1
    results = ((part, function(part)) for part in left)
    if elsewhere:
        call = partial(_call_with_core_share, function)
        results = map_parallel(call, left, processes=config.processes, ray_address=config.ray_address)  # type: ignore[assignment]
    with current_progress().task(name, total=total) as task:
        task.skip(sum(map(len, found)))
        while parts and parts[0] in found:
            yield found.pop(parts.pop(0))
        for part, result in results:
            found[part] = result
            if part in files and not write_arrays(files[part], _as_tuple(result)):
                problem = f"finished parts cannot be cached in {files[part].parent}"
                current_progress().warning(f"{problem}, so this command must start over if it is interrupted")
                files.clear()
            task.advance(len(part))
            while parts and parts[0] in found:
                yield found.pop(parts.pop(0))
    for file in files.values():
        file.unlink(missing_ok=True)


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _call_with_core_share(function: Callable[[Item], Result], item: Item) -> Result:
    """Call a function with its number of threads limited to the process's share of the cores."""
    with threadpool_limits(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"]))):
        return function(item)


def _run_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int, gpus: bool
) -> Iterator[tuple[Item, Result]]:
    context, left, deaths = get_context("spawn"), list(items), 0
    before = set(active_children())
    while left:
        count = min(processes, len(left))
        numbers = context.Queue()
        for number in range(count):
            numbers.put(number)
        pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_initialize_process, initargs=(numbers, processes, gpus)
        )
        try:
            with hide_main_module():
                futures = {pool.submit(function, item): item for item in left}
            for future in as_completed(futures):
                result = future.result()
                left.remove(futures[future])
                deaths = 0
                yield futures[future], result
        except BrokenProcessPool as error:
            deaths += 1
            if deaths == _MAX_DEATHS:
                remedy = "Lower --processes if memory is insufficient, or remove --processes to see the cause."
                raise ResourceError("--processes", f"worker processes died {deaths} times in a row", remedy) from error
        finally:
            if left:  # an error, or the caller stopped iterating
                for child in set(active_children()) - before:
                    child.terminate()
            pool.shutdown(cancel_futures=True)


def _initialize_process(numbers: Queue[int], processes: int, gpus: bool) -> None:
    """Set up a worker process: it ends with the main process, uses its share of the cores, and sees at most one GPU."""
    exit_with_parent("a process of the pool")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main process ends this one
    os.environ["LOCAL_WORLD_SIZE"] = str(processes)  # as under torchrun: number of processes that share the cores
    if gpus:
        import torch

        count = torch.cuda.device_count()
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[numbers.get() % count]


def check_ray_cluster(address: str | None) -> None:
    """Check that Ray is installed and the cluster can be reached, before any work; an address of ``None`` is valid.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """
    if address is None:
        return
    if importlib.util.find_spec("ray") is None:
        remedy = 'Run `pip install "labelkit-images[ray]"`, here and on the nodes of the cluster.'
        raise ConfigError("--ray-address", "Ray is not installed", remedy)
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray's own timeout is minutes
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise _no_cluster_error(address, error) from error


def _no_cluster_error(address: str, error: Exception) -> ConfigError:
    remedy = "Start Ray there (`ray start --head`), pass the address that it prints, or pass local to use no cluster."
    return ConfigError("--ray-address", f"there is no Ray cluster at {address} ({error})", remedy)


def _run_on_ray(
    function: Callable[[Item], Result], items: Sequence[Item], address: str, gpus: bool
) -> Iterator[tuple[Item, Result]]:
    check_ray_cluster(address)
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster_error(address, error) from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        if gpus and not nodes:
            problem = f"no node of the cluster at {address} has a GPU"
            raise ConfigError("--ray-address", problem, "Use --device cpu, or add a node with a GPU.")
        cores = max(1, int(min(node.get("CPU", 0) // node["GPU"] for node in nodes))) if gpus else 1
        folder = Path.cwd()

        def call(function: Callable[[Item], Result], item: Item) -> Result:
            os.chdir(folder)  # relative paths refer to the folder in which the command was run
            os.environ["LOCAL_WORLD_SIZE"] = str(max(1, (os.cpu_count() or 1) // cores))
            return function(item)

        remote = ray.remote(num_cpus=cores, num_gpus=int(gpus), max_retries=_RETRIES)(call)
        shared = ray.put(function)
        calls: dict[Any, Item] = {remote.remote(shared, item): item for item in items}
        while calls:
            (done, *_), _ = ray.wait(list(calls))
            item = calls.pop(done)
            yield item, ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, LabelkitError) else error) from None
    except ray.exceptions.RayError as error:
        problem = f"a part was lost {_RETRIES + 1} times: {str(error).splitlines()[0]}"
        remedy = "Check the nodes of the Ray cluster, and then run the same command again to resume."
        raise ResourceError("--ray-address", problem, remedy) from error
    finally:
        ray.shutdown()
