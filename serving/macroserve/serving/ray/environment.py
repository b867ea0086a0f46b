"""Environment variables that Ray reads when it is first imported.

A client of Ray's ports can execute code, because Ray unpickles its messages. A deployment uses its
own HTTP servers between machines, so Ray's ports are closed to others.
"""

import os

from macroserve.api.auth import new_secret

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Like on a laptop, Ray's servers then listen only on the loopback interface...
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # ...except for one in each Serve replica, which requires the token like the others.
    "RAY_AUTH_MODE": "token",
    # No call starts another Ray after ours has ended.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # Ray would kill healthy instances for memory that other programs use.
    "RAY_memory_monitor_refresh_ms": "0",
    # On a busy machine, a scheduler's process takes longer to start than 60 s, Ray's default.
    "RAY_worker_register_timeout_seconds": "120",
    # A replica that hangs ignores a request to stop, and keeps its port meanwhile.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_kill_worker_timeout_milliseconds": "1000",
    # Serve's default of ten control loops a second is most of an idle machine's CPU time; health
    # is checked once a second, so this delays reactions only a little.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    # A scheduler then needs no second thread and event loop.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Ray's metrics, statistics and task histories are not used.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "60000",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}


def prepare_environment() -> None:
    for name, value in {**DEFAULTS, "RAY_AUTH_TOKEN": new_secret()}.items():
        os.environ.setdefault(name, value)
