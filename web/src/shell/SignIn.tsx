// Asks for the server's token when a request is answered with 401. The server turns it into a cookie at `/?token=`.
import { type FormEvent, useEffect, useState } from "react";
import { onUnauthorised } from "../api/client";
import { Button, Dialog, Field, TextInput } from "../ui";

const RETURN = "fresco.return";

/** After signing in the server leads to the start; go back to where the person was. */
export function restoreRoute() {
  try {
    const hash = sessionStorage.getItem(RETURN);
    sessionStorage.removeItem(RETURN);
    if (hash && !location.hash) history.replaceState(null, "", hash);
  } catch {
    // Without storage the start page will do.
  }
}

export function SignIn() {
  const [open, setOpen] = useState(false);
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => onUnauthorised(() => setOpen(true)), []);

  const submit = async (e: FormEvent) => {
    e.preventDefault();
    setBusy(true);
    setError("");
    try {
      const answer = await fetch("/api/features", { headers: { authorization: `Bearer ${token.trim()}` } });
      if (answer.status === 401) {
        setError("That is not this server's token.");
        return;
      }
      try {
        sessionStorage.setItem(RETURN, location.hash);
      } catch {
        // See restoreRoute.
      }
      location.assign(`/?token=${encodeURIComponent(token.trim())}`);
    } catch {
      setError("Fresco does not answer. Try again in a moment.");
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog open={open} onClose={() => setOpen(false)} title="Sign in">
      <form onSubmit={submit}>
        <p>This server is protected by a token. It is part of the address that Fresco printed when it started.</p>
        <br />
        <Field label="Token" error={error || undefined}>
          <TextInput type="password" autoComplete="current-password" required value={token} onChange={setToken} />
        </Field>
        <br />
        <Button type="submit" variant="primary" icon="key" busy={busy}>
          Sign in
        </Button>
      </form>
    </Dialog>
  );
}
