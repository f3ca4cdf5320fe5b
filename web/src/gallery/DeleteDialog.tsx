// Asks before deleting, and says afterwards what could not be deleted.
import { useState } from "react";
import { Button, Dialog, toast } from "../ui";
import { removeJobs } from "./remove";

export interface DeleteDialogProps {
  ids: readonly string[];
  open: boolean;
  onClose(): void;
  onDone(gone: string[]): void;
}

export function DeleteDialog({ ids, open, onClose, onDone }: DeleteDialogProps) {
  const [busy, setBusy] = useState(false);
  const remove = async () => {
    setBusy(true);
    try {
      const { gone, failed, kept } = await removeJobs(ids);
      if (gone.length > 0) toast(gone.length === 1 ? "Deleted" : `${gone.length} results deleted`, "good");
      if (failed.length > 0) toast(`Could not be deleted: ${failed.map((f) => `${f.file.filename} (${f.reason})`).join(", ")}`, "bad");
      if (kept.length > 0) toast(`Kept, because another result shows it too: ${kept.map((f) => f.filename).join(", ")}`, "info");
      onDone(gone);
    } catch (e) {
      toast(`Nothing was deleted: ${(e as Error).message}`, "bad");
    } finally {
      setBusy(false);
      onClose();
    }
  };
  const one = ids.length === 1;
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title={one ? "Delete this result?" : `Delete ${ids.length} results?`}
      actions={
        <>
          <Button onClick={onClose}>Keep</Button>
          <Button variant="danger" icon="trash" busy={busy} onClick={() => void remove()}>
            Delete
          </Button>
        </>
      }
    >
      <p>{one ? "Its files and its settings" : "Their files and their settings"} are removed from this machine. This cannot be undone.</p>
    </Dialog>
  );
}
