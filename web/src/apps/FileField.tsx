// A field for a picture, film or sound: shows what is chosen, takes a new one by drop or choice, or one that is already there.
import { useState } from "react";
import { annotated, uploadImage, viewUrl } from "../api/client";
import { fromAnnotated } from "../api/files";
import { Combo, DropZone, Field as Labelled, Picture } from "../ui";
import type { Field } from "./fields";
import { sentenceOf } from "./open";
import { noteSent } from "./work";
import css from "./FileField.module.css";

const accepts = { image: "image/*", video: "video/*", audio: "audio/*", file: ".glb,.gltf,.obj,.fbx,.stl" } as const;
const words = { image: "picture", video: "video", audio: "sound", file: "file" } as const;
const sizeLimit = 100 * 1024 * 1024;

export function FileField({ field, value, onChange, error }: { field: Field; value: string; onChange(value: string): void; error?: string }) {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  // Files put there from here, so that the list has them without asking the server again.
  const [added, setAdded] = useState<string[]>([]);
  const kind = field.upload ?? "file";
  const word = words[kind];

  const take = async (file: File) => {
    if (file.size > sizeLimit) {
      setTrouble("This file is larger than 100 MB.");
      return;
    }
    setBusy(true);
    setTrouble("");
    try {
      const name = annotated(await uploadImage(file, file.name));
      noteSent(name);
      setAdded((old) => [name, ...old]);
      onChange(name);
    } catch (e) {
      setTrouble(sentenceOf(e));
    } finally {
      setBusy(false);
    }
  };

  const choices = [...new Set([...added, ...(field.choices ?? [])])];
  const url = value ? viewUrl(fromAnnotated(value)) : "";
  return (
    <div className={css.field}>
      <Labelled label={field.label} error={trouble || error} hint={busy ? "Sending the file…" : undefined}>
        {value && !error && (
          <div className={css.shown}>
            {kind === "image" && <Picture file={fromAnnotated(value)} alt={`${field.label}: ${value}`} preview className={css.picture} />}
            {kind === "video" && <video src={url} controls muted className={css.picture} aria-label={`${field.label}: ${value}`} />}
            {kind === "audio" && <audio src={url} controls aria-label={`${field.label}: ${value}`} />}
          </div>
        )}
        <Combo options={choices} value={value} onChange={onChange} placeholder={`Choose a ${word} that is already here`} label={field.label} />
      </Labelled>
      <DropZone compact accept={accepts[kind]} onFile={(file) => void take(file)} label={`${value ? "Replace" : "Drop or choose"}: ${field.label}`} />
    </div>
  );
}
