// Asks for the name of an app.
import { useEffect, useState } from "react";
import { Button, Dialog, Field, TextInput } from "../ui";
import { cleanName } from "./appFile";

export interface NameDialogProps {
  open: boolean;
  title: string;
  first: string;
  action: string;
  onName(name: string): void;
  onClose(): void;
}

export function NameDialog({ open, title, first, action, onName, onClose }: NameDialogProps) {
  const [name, setName] = useState(first);
  const [tried, setTried] = useState(false);
  useEffect(() => {
    if (!open) return;
    setName(first);
    setTried(false);
  }, [open, first]);
  const clean = cleanName(name);
  const submit = () => {
    setTried(true);
    if (clean) onName(clean);
  };
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title={title}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button variant="primary" onClick={submit}>
            {action}
          </Button>
        </>
      }
    >
      <form
        onSubmit={(e) => {
          e.preventDefault();
          submit();
        }}
      >
        <Field
          label="Name"
          error={tried && !clean ? "Enter a name with letters or numbers." : undefined}
          hint={clean && clean !== name.trim() ? `It will be called "${clean}".` : undefined}
        >
          <TextInput value={name} maxLength={80} autoFocus onChange={setName} />
        </Field>
      </form>
    </Dialog>
  );
}
