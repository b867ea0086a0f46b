"""Set the environment variables that Ray reads when it is first imported.

A client that reaches Ray's ports can have code run: Ray unpickles what arrives there. A deployment
talks over its own HTTP servers and its Ray is of one machine, so nobody else is let in.
"""

import os

from macroserve.api.auth import new_secret

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # As on a laptop's operating system, its servers then listen on the loopback alone...
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # ...but for one in each Serve replica, which like the others wants the token.
    "RAY_AUTH_MODE": "token",
    # Nothing starts another Ray by itself where ours has gone.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # Ray would kill healthy instances for the memory that other programs take: the operating system
    # knows better who took it.
    "RAY_memory_monitor_refresh_ms": "0",
    # A replica that hangs does not heed a polite request to end, and keeps its port meanwhile.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_kill_worker_timeout_milliseconds": "1000",
    # By default Serve looks at its replicas ten times a second, which is most of an idle machine's
    # work. They are asked for their health once a second, and this delays what follows.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    # A scheduler then has one loop, uvloop's, and no thread beside it.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Nobody reads Ray's own metrics, statistics and task histories: the deployment has its own.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "60000",
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}


def prepare_environment() -> None:
    for name, value in {**DEFAULTS, "RAY_AUTH_TOKEN": new_secret()}.items():
        os.environ.setdefault(name, value)
