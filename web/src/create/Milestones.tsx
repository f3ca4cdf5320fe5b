// Tells screen readers the few things worth hearing: begun, half done, ready.
import { useEffect, useState } from "react";
import { useLive } from "../state/live";
import type { Group } from "./groups";
import { isSampler, useWatched } from "./pace";

export function Milestones({ group }: { group: Group | undefined }) {
  const [words, setWords] = useState("");
  const half = useLive((s) => {
    const job = useWatched.getState().job;
    const kind = s.running?.node ? job?.prompt?.[s.running.node]?.class_type : undefined;
    return isSampler(kind) && s.running !== null && s.running.max > 1 && s.running.value * 2 >= s.running.max ? s.running.id : null;
  });
  const states = group?.jobs.map((j) => j.status).join(" ") ?? "";
  useEffect(() => {
    if (half) setWords("Half done.");
  }, [half]);
  useEffect(() => {
    const list = states.split(" ");
    const done = list.filter((s) => s === "completed").length;
    // A page that was just opened on an old picture has nothing to tell.
    setWords((before) => {
      if (list.includes("in_progress")) return done > 0 ? `${done} of ${list.length} pictures are ready.` : "Drawing has begun.";
      if (list.includes("pending")) return "Waiting for its turn.";
      if (before === "") return "";
      if (list.includes("failed")) return "The picture could not be finished.";
      if (done === 0) return "Cancelled.";
      return done === 1 ? "The picture is ready." : `${done} pictures are ready.`;
    });
  }, [states]);
  return (
    <div className="hidden-visually" role="status" aria-live="polite">
      {words}
    </div>
  );
}
