// Python packs: how each is, what it said, and a button that starts their process anew.
import { useCallback, useEffect, useState } from "react";
import { ApiError, getJson, sendJson } from "../api/client";
import { Button, Disclosure, toast } from "../ui";
import { type PacksReport, packFaults, packLine, packsLine } from "./packWords";
import css from "./memory.module.css";

/** Packs change rarely; while they start, they are asked after more often. */
const POLL = 5000;
const POLL_STARTING = 800;

export function Packs() {
  const [report, setReport] = useState<PacksReport | null>(null);
  const [busy, setBusy] = useState(false);
  const refresh = useCallback(async () => {
    try {
      setReport(await getJson<PacksReport>("/api/packs"));
    } catch {
      // The banner says that the server is away.
    }
  }, []);
  const moving = report?.state === "starting" || report?.state === "restarting";
  useEffect(() => {
    void refresh();
    const poll = setInterval(
      () => {
        if (document.visibilityState === "visible") void refresh();
      },
      moving ? POLL_STARTING : POLL,
    );
    return () => clearInterval(poll);
  }, [refresh, moving]);

  const restart = async () => {
    setBusy(true);
    try {
      await sendJson("POST", "/fresco/packs/restart", {});
      toast("The packs are restarting.", "good");
    } catch (e) {
      toast(e instanceof ApiError ? [e.message, e.details].filter(Boolean).join(": ") : String(e), "bad");
    } finally {
      setBusy(false);
      void refresh();
    }
  };

  if (!report || report.packs.length === 0) return null;
  return (
    <section aria-labelledby="memory-packs">
      <h2 id="memory-packs" className={css.heading}>
        Python packs
      </h2>
      <p className={css.soft} role="status">
        {packsLine(report)}
      </p>
      <ul className={css.packs}>
        {report.packs.map((pack) => (
          <li key={pack.name} data-state={pack.state}>
            <strong>{pack.name}</strong> <span className={css.soft}>{packLine(pack)}</span>
            {packFaults(pack).map((fault) => (
              <div key={fault} className={css.packFault}>
                {fault}
              </div>
            ))}
            {(pack.traceback || (pack.log ?? []).length > 0) && (
              <Disclosure title={pack.state === "failed" ? "Error and log" : "Log"}>
                <pre className={css.packLog}>{[pack.traceback, (pack.log ?? []).join("\n")].filter(Boolean).join("\n")}</pre>
              </Disclosure>
            )}
          </li>
        ))}
      </ul>
      <Button icon="refresh" busy={busy || moving} disabled={busy || moving} onClick={() => void restart()}>
        Restart packs
      </Button>
    </section>
  );
}
