// Stands in for a view whose files could not be fetched, because the server was away when it was opened.
import { useEffect, useState } from "react";
import { onBack, request } from "../api/client";
import { Button, EmptyState } from "../ui";

// What a browser could not fetch it does not ask for again, so the page is loaded anew. Forms and the open workflow are kept
// in the browser.
const again = () => location.reload();

export function NotFetched() {
  const [busy, setBusy] = useState(false);
  useEffect(() => onBack(again), []);
  const ask = async () => {
    setBusy(true);
    try {
      await request("/api/features");
      again();
    } catch {
      setBusy(false);
    }
  };
  return (
    <EmptyState
      icon="warning"
      title="Fresco does not answer"
      action={
        <Button icon="refresh" busy={busy} onClick={() => void ask()}>
          Try again
        </Button>
      }
    >
      This view opens as soon as Fresco is back. Your pictures and your queue are safe.
    </EmptyState>
  );
}
