#!/usr/bin/env python3
"""Writes the Grafana dashboard of mempool-ingest to stdout, built with the Grafana Foundation SDK.

`scripts/dashboards.sh` installs the SDK, compares what this prints with mempool-ingest.json beside it, and executes
every query on a real Prometheus.
"""

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
STATES = {0: ("connecting", "orange"), 1: ("backfilling", "blue"), 2: ("live", "green"), 3: ("stale", "red"), 4: ("ended", "dark-red"),
          5: ("syncing", "orange")}
LOADS = {0: ("normal", "green"), 1: ("elevated", "orange"), 2: ("critical", "red")}
STREAM_STATES = {
    0: ("ended", "dark-red"), 1: ("connecting", "orange"), 2: ("catching up", "blue"), 3: ("live", "green"),
    4: ("lagging", "orange"), 5: ("stream unavailable", "red"), 6: ("stream missing", "red"), 7: ("stream full", "red"),
    8: ("denied", "red"), 9: ("disconnected", "red"), 10: ("failed", "dark-red"),
}
INSTANCE = 'instance=~"$instance"'
# What the recorder of a host puts before every name.
PREFIX = "${prefix}"


def on(metric, more=""):
    """A selector of the instances that are chosen."""
    return f"{PREFIX}{metric}{{{INSTANCE}{', ' + more if more else ''}}}"


def rate(metric, more=""):
    return f"rate({on(metric, more)}[$__rate_interval])"


def rate_by(label, metric):
    return f"sum by ({label}) ({rate(metric)})"


def total(metric, more=""):
    """How much it rose in the time that is shown."""
    return f"sum(increase({on(metric, more)}[$__range]))"


def quantile(of, metric):
    of_summary = on(metric, f'quantile="{of}"')
    return f"histogram_quantile({of}, sum by (le) ({rate(metric + '_bucket')})) or max({of_summary})"


def quantiles(metric):
    return [(quantile(of, metric), name) for of, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))]


def share(of, cap):
    return f"{of} / {on(cap)}"


def mapping(names):
    results = {
        str(value): models.ValueMappingResult(text=text, color=color, index=value)
        for value, (text, color) in names.items()
    }
    return [models.ValueMap(options=results)]


def targets(panel, queries):
    panel.datasource(SOURCE)
    for index, (expr, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + index)).range()
        panel.with_target(query)
    return panel


def number(title, text, query, legend="", bad_above=None):
    panel = stat.Panel().title(title).description(text).span(4).height(4)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    steps = [models.Threshold(value=None, color="green")]
    if bad_above is not None:
        steps.append(models.Threshold(value=bad_above, color="orange"))
    thresholds = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    return targets(panel.thresholds(thresholds), [(query, legend)])


def named(title, text, query, legend, names):
    panel = statetimeline.Panel().title(title).description(text).span(12).height(6).mappings(mapping(names))
    return targets(panel, [(query, legend)])


def graph(title, text, unit, *queries, span=8):
    legend = common.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "max"])
    legend.display_mode(common_models.LegendDisplayMode.TABLE).placement(common_models.LegendPlacement.BOTTOM)
    panel = timeseries.Panel().title(title).description(text).unit(unit).span(span).height(8).min(0)
    return targets(panel.legend(legend), queries)


ROWS = {
    "Health": [
        named("Sources", "What each source is doing. Live is good; an alert fires after 2 minutes of anything else.",
              on("mempool_fetcher_source_state"), "{{instance}} {{source}}", STATES),
        named("Load", "While it is not normal, backfill, audits, retries and raw transactions of the public wait.",
              on("load_control_state"), "{{instance}}", LOADS),
        number("Sources audited", "Sources whose node lists its pool, so that what it did not announce is found.",
               f"sum({on('mempool_fetcher_source_audited')})"),
        number("Found by audits", "Transactions that a comparison with the node's pool brought in after the start-up.",
               total("mempool_fetcher_hashes_total", 'entry="audit_recovered"'), bad_above=1),
        number("Announcements lost", "Lost in our own buffer, and brought in by a comparison.",
               total("mempool_fetcher_lagged_total"), bad_above=1),
        number("Failed fetches", "Without a usable answer after the last retry; the next audit tries again.",
               total("mempool_fetcher_outcomes_total", 'outcome=~"failed|malformed"'), bad_above=1),
        number("Not listed by the node", "Pending in the node, which counts them and does not list them: blobs on geth.",
               f"sum({on('mempool_fetcher_unlistable')})", bad_above=1),
        number("Heads per minute", "Applied by the pool: 5 on mainnet.",
               f"sum(increase({on('order_pool_heads_total')}[1m]))"),
    ],
    "Intake": [
        graph("Hashes in", "Announced, backfilled at the start, brought in by an audit.", "cps",
              (rate_by("entry", "mempool_fetcher_hashes_total"), "{{entry}}")),
        graph("Outcomes", "Each hash leaves with exactly one.", "cps",
              (rate_by("outcome", "mempool_fetcher_outcomes_total"), "{{outcome}}")),
        graph("In flight", "Hashes that have entered and not left, announcements not yet taken in, and the limit.", "short",
              (f"sum({on('mempool_fetcher_unfinished')})", "unfinished"),
              (on("mempool_fetcher_backlog"), "backlog {{source}}"),
              (on("mempool_fetcher_fetch_limit"), "limit {{source}}"),
              (f"sum({on('mempool_fetcher_sink_waiting')})", "events for the sink")),
        graph("Retries and late answers", "By the reason of the retry.", "cps",
              (rate_by("reason", "mempool_fetcher_retries_total"), "{{reason}}"),
              (f"sum({rate('mempool_fetcher_late_answers_total')})", "answered after the time-out")),
        graph("Connections", "Lost after they had worked, by reason, and attempts that failed.", "cps",
              (rate_by("reason", "mempool_fetcher_reconnects_total"), "lost: {{reason}}"),
              (f"sum({rate('mempool_fetcher_connect_failures_total')})", "attempts failed")),
        graph("Comparisons with the node's pool", "By reason and result.", "cps",
              (rate_by("reason, result", "mempool_fetcher_audits_total"), "{{reason}}: {{result}}")),
    ],
    "Latency": [
        graph("Announcement to pool", "From the socket to the end of the delivery to the sink.", "s",
              *quantiles("mempool_fetcher_deliver_seconds")),
        graph("Fetch", "From the request for a transaction to its response: the node's part.", "s",
              *quantiles("mempool_fetcher_fetch_seconds")),
        graph("Upkeep of the pool", "How long one step took.", "s",
              *quantiles("order_pool_upkeep_step_seconds")),
    ],
    "Pool": [
        graph("Orders", "In the pool now.", "short",
              (f"{on('order_pool_txs')} - {on('order_pool_external_txs')}", "announced by the node {{instance}}"),
              (on("order_pool_external_txs"), "sent by external callers {{instance}}"),
              (on("order_pool_bundles"), "bundles {{instance}}")),
        graph("Share of the cap", "Announced transactions are evicted at 1, the worst-paying first. Bundles: half of the cap is for callers. "
              "External transactions: raw ones up to 1, private ones as much again.", "percentunit",
              (share(f"({on('order_pool_txs')} - {on('order_pool_external_txs')})", "order_pool_max_txs"), "txs {{instance}}"),
              (share(f"({on('order_pool_tx_bytes')} - {on('order_pool_external_tx_bytes')})", "order_pool_max_tx_bytes"), "tx bytes {{instance}}"),
              (share(on("order_pool_external_txs"), "order_pool_max_external_txs"), "external txs {{instance}}"),
              (share(on("order_pool_external_tx_bytes"), "order_pool_max_external_tx_bytes"), "external tx bytes {{instance}}"),
              (share(on("order_pool_bundles"), "order_pool_max_bundles"), "bundles {{instance}}"),
              (share(on("order_pool_bundle_bytes"), "order_pool_max_bundle_bytes"), "bundle bytes {{instance}}")),
        graph("Bytes", "Of the orders in the pool, and of removed ones that slow readers may still want.", "bytes",
              (on("order_pool_tx_bytes"), "transactions {{instance}}"), (on("order_pool_bundle_bytes"), "bundles {{instance}}"),
              (on("order_pool_log_bytes"), "log {{instance}}"), (on("mempool_fetcher_in_flight_bytes"), "answers in flight {{instance}}")),
        graph("Orders in and out", "", "cps",
              *((f"sum({rate(f'order_pool_{kind}_total')})", kind)
                for kind in ("inserted", "mined", "stale", "expired", "evicted", "replaced", "cancelled", "put_back"))),
        graph("Chain", "Heads applied, of which reorgs, and heads whose parent is unknown.", "cps",
              *((f"sum({rate(f'order_pool_{kind}_total')})", kind) for kind in ("heads", "reorgs", "head_gaps"))),
        graph("Slow subscribers", "Events that lagging readers missed.", "cps",
              (f"sum({rate('order_pool_missed_events_total')})", "missed events")),
    ],
    "Searchers' orders": [
        graph("Accepted", "By method.", "cps", (rate_by("method", "order_rpc_accepted_total"), "{{method}}")),
        graph("Refused and failed", "Refused by a limit; failed because the request was wrong.", "cps",
              (f"{rate_by('reason', 'order_rpc_refused_total')} > 0 or sum({rate('order_rpc_refused_total')})", "refused {{reason}}"),
              (f"{rate_by('reason', 'order_rpc_failed_total')} > 0 or sum({rate('order_rpc_failed_total')})", "failed {{reason}}")),
        graph("Gates", "Permits held and callers refused, by gate; deferred raw transactions.", "short",
              (f"sum by (gate) ({on('load_control_gate_in_use')})", "{{gate}} in use"),
              (f"sum by (gate) ({rate('load_control_gate_refused_total')})", "{{gate}} refused/s"),
              (f"sum({on('order_rpc_deferred')})", "deferred")),
        graph("Connections", "Open now.", "short", (f"sum({on('order_rpc_connections')})", "connections")),
    ],
    "Blocklist": [
        graph("Age", "Since the list in force was true. At the maximum age, 24 h by default, nothing is built.", "s",
              (f"time() - {on('blocklist_as_of_timestamp_seconds')}", "{{instance}}")),
        graph("Addresses", "Of the list in force.", "short", (on("blocklist_addresses"), "{{instance}}")),
        graph("Refused", "Transactions, by how they reached a listed address, and blocks, by reason.", "cps",
              (rate_by("how", "blocklist_blocked_total"), "transaction: {{how}}"),
              (rate_by("reason", "blocklist_refusals_total"), "block: {{reason}}")),
        graph("Reloads", "By outcome.", "cps", (rate_by("outcome", "blocklist_reloads_total"), "{{outcome}}")),
    ],
    "Fleet": [
        named("Streams", "What each publisher and each source of the streams between machines is doing.",
              on("order_stream_state"), "{{instance}} {{side}} {{flow}}", STREAM_STATES),
        number("Missed", "Messages that left the stream before they were read.",
               total("order_stream_missed_total"), bad_above=1),
        number("Refused by the stream", "Orders of this machine that no builder of the fleet has.",
               total("order_stream_refused_total", 'reason!="withdrawn"'), bad_above=1),
        number("Streams made anew", "Everything is published and read again.",
               total("order_stream_stream_resets_total"), bad_above=1),
        graph("Published", "The stream stores one message of each order, whoever publishes it first.", "cps",
              (rate_by("outcome", "order_stream_acknowledged_total"), "{{outcome}}"),
              (f"sum({rate('order_stream_republished_total')})", "published again")),
        graph("Received", "Each message leaves with exactly one outcome.", "cps",
              (rate_by("outcome", "order_stream_delivered_total"), "{{outcome}}")),
        graph("On their way", "Messages without an acknowledgement, and messages that a builder has not read yet.", "short",
              (on("order_stream_unfinished"), "unfinished {{instance}} {{flow}}"),
              (on("order_stream_behind"), "behind {{instance}} {{flow}}")),
    ],
    "Metrics port": [
        graph("Connections", "Scrapes and what else came, by outcome.", "cps",
              (rate_by("outcome", "mempool_telemetry_connections_total"), "{{outcome}}")),
        number("Builds", "The version, profile and architecture of each process, and the cores that it may use.",
               on("mempool_build_info"), "{{instance}}: {{version}} {{profile}} {{arch}}, {{cores}} cores"),
    ],
}


def build():
    board = dashboard.Dashboard("mempool-ingest").uid("mempool-ingest").tags(["mempool", "ethereum"]).refresh("10s")
    board.description("A node's mempool on its way into a block builder. Generated: change dashboard.py.")
    board.time("now-30m", "now").timezone("browser").readonly().tooltip(models.DashboardCursorSync.CROSSHAIR)
    board.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    board.with_variable(dashboard.TextBoxVariable("prefix").label("Prefix of the metrics").default_value(""))
    instances = dashboard.QueryVariable("instance").label("Instance").datasource(SOURCE)
    instances.query(f"label_values({PREFIX}order_pool_txs, instance)").include_all(True).multi(True).all_value(".*")
    board.with_variable(instances.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED))
    for number, (title, panels) in enumerate(ROWS.items(), start=1):
        board.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            board.with_panel(panel)
    return board.build()


if __name__ == "__main__":
    print(JSONEncoder(sort_keys=True, indent=1).encode(build()))
