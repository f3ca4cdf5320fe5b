// Chooses one of the workflows that the graph editor saved.
import { useEffect, useState } from "react";
import { Button, Dialog, TextInput } from "../ui";
import { savedWorkflows } from "./library";
import { sentenceOf } from "./open";
import css from "./SavedWorkflows.module.css";

export function SavedWorkflows({ open, onClose, onChoose }: { open: boolean; onClose(): void; onChoose(path: string): void }) {
  const [files, setFiles] = useState<string[] | null>(null);
  const [failed, setFailed] = useState("");
  const [find, setFind] = useState("");
  useEffect(() => {
    if (!open) return;
    setFind("");
    savedWorkflows().then(
      (found) => {
        setFiles(found);
        setFailed("");
      },
      (e: unknown) => setFailed(sentenceOf(e)),
    );
  }, [open]);
  const wanted = find.trim().toLowerCase();
  const found = files?.filter((file) => file.toLowerCase().includes(wanted)) ?? [];
  return (
    <Dialog open={open} onClose={onClose} title="Saved workflows">
      <div className={css.body}>
        {failed && <p role="alert">{failed}</p>}
        {files?.length === 0 && <p>There are none yet. Workflows saved in Graph appear here.</p>}
        {files && files.length > 8 && <TextInput type="search" aria-label="Find a workflow" placeholder="Find a workflow" value={find} onChange={setFind} />}
        <ul className={css.list}>
          {found.slice(0, 200).map((file) => (
            <li key={file}>
              <Button variant="quiet" icon="graph" className={css.item} onClick={() => onChoose(file)}>
                {file.replace(/\.json$/, "")}
              </Button>
            </li>
          ))}
        </ul>
      </div>
    </Dialog>
  );
}
