// Rates and readiness of each LUN, if the server counts them.

import { get } from "./api.js";

/** Servers with more LUNs would send too much in each interval. */
const LIMIT = 200;

function totals(lun) {
  const op = (name) => lun.ops.find((one) => one.op === name) || { commands: 0, latency: null };
  const [read, write] = [op("read"), op("write")];
  const whole = [read, write].filter((one) => one.latency).map((one) => one.latency.whole);
  return {
    reads: read.commands,
    writes: write.commands,
    read_bytes: lun.read_bytes,
    written_bytes: lun.written_bytes,
    timed: whole.reduce((sum, { counts }) => sum + counts.reduce((a, b) => a + b, 0), 0),
    time_s: whole.reduce((sum, { sum_s }) => sum + sum_s, 0),
  };
}

function rates(now, before, seconds, lun) {
  const rate = (key) => Math.max(0, now[key] - before[key]) / seconds;
  const timed = now.timed - before.timed;
  return {
    reads_s: rate("reads"), writes_s: rate("writes"), read_bytes_s: rate("read_bytes"), written_bytes_s: rate("written_bytes"),
    latency_s: timed > 0 ? (now.time_s - before.time_s) / timed : null,
    in_flight: lun.in_flight,
  };
}

/** Reads what the LUNs did since the reading before. */
export async function readLunRates(state) {
  const luns = state.objects.filter(({ kind }) => kind === "lun").length;
  if (state.noMetrics || luns === 0 || luns > LIMIT) {
    state.rates = null;
    return;
  }
  let report;
  try {
    report = await get("/v1/metrics");
  } catch (e) {
    if (e.status !== 404) throw e;
    state.noMetrics = true;
    return;
  }
  const before = state.metricsBefore;
  const now = new Map(report.luns.map((lun) => [`${lun.target} ${lun.lun}`, totals(lun)]));
  const seconds = before ? report.uptime_s - before.uptime_s : 0;
  state.notReady = report.luns.filter(({ ready }) => !ready);
  state.capacities = new Map(report.luns.map((lun) => [`${lun.target} ${lun.lun}`, lun.capacity_bytes]));
  state.metricsBefore = { uptime_s: report.uptime_s, luns: now };
  const of = (lun) => {
    const key = `${lun.target} ${lun.lun}`;
    const then = before && before.luns.get(key);
    return [key, then && seconds > 0 ? rates(now.get(key), then, seconds, lun) : null];
  };
  state.rates = new Map(report.luns.map(of));
}
