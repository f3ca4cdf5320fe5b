// The prompt, the one big button, and how many pictures.
import { type ReactNode, type Ref, useEffect, useRef, useState } from "react";
import { Button, IconButton, settleFields, TextArea } from "../ui";
import { EXAMPLES, isStarter, PLACEHOLDER, starterHint } from "./starter";
import { COUNT_MAX, type CreateValues } from "./values";
import css from "./PromptBox.module.css";

export interface PromptBoxProps {
  values: CreateValues;
  set(patch: Partial<CreateValues>): void;
  onCreate(): void;
  /** How many jobs run or wait. */
  waiting: number;
  disabled: boolean;
  promptRef: Ref<HTMLTextAreaElement>;
  createRef: Ref<HTMLButtonElement>;
  /** What stands between the prompt and the button. */
  children?: ReactNode;
}

export function PromptBox({ values, set, onCreate, waiting, disabled, promptRef, createRef, children }: PromptBoxProps) {
  const [empty, setEmpty] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const start = () => {
    settleFields();
    const nothing = values.prompt.trim() === "" && !values.image;
    setEmpty(nothing);
    if (nothing) box.current?.querySelector("textarea")?.focus();
    else onCreate();
  };
  return (
    <div ref={box} className={css.box}>
      <div className={css.paper}>
        <TextArea
          ref={promptRef}
          aria-label="Prompt"
          aria-invalid={empty || undefined}
          aria-describedby={empty ? "create-empty" : undefined}
          className={css.prompt}
          rows={3}
          placeholder={PLACEHOLDER}
          value={values.prompt}
          onChange={(prompt) => {
            setEmpty(false);
            set({ prompt });
          }}
        />
        {values.prompt !== "" && (
          <IconButton
            size="s"
            className={css.wipe}
            label="Clear the prompt"
            icon="close"
            onClick={() => {
              set({ prompt: "" });
              box.current?.querySelector("textarea")?.focus();
            }}
          />
        )}
      </div>
      {isStarter(values.model) && <StarterHint prompt={values.prompt} />}
      {empty && (
        <p id="create-empty" role="alert" className={css.empty}>
          Type a few words first, or choose one of the examples below.
        </p>
      )}
      {children}
      <div className={css.row}>
        <Button
          ref={createRef}
          data-create
          variant="primary"
          size="l"
          icon="create"
          className={css.create}
          onClick={start}
          disabled={disabled}
          title="Ctrl+Enter"
        >
          {waiting > 0 ? "Create another" : "Create"}
        </Button>
        <div className={css.count} role="group" aria-label="How many pictures">
          <IconButton label="One picture fewer" icon="minus" disabled={values.count <= 1} onClick={() => set({ count: values.count - 1 })} />
          <span className={css.number} aria-live="polite">
            <span aria-hidden="true">×</span>
            {values.count}
            <span className="hidden-visually"> {values.count === 1 ? "picture" : "pictures"}</span>
          </span>
          <IconButton label="One picture more" icon="plus" disabled={values.count >= COUNT_MAX} onClick={() => set({ count: values.count + 1 })} />
        </div>
      </div>
      {values.prompt === "" && (
        <div className={css.chips} role="group" aria-label="Examples">
          {EXAMPLES.map((text) => (
            <button
              key={text}
              type="button"
              className={css.chip}
              onClick={() => {
                setEmpty(false);
                set({ prompt: text });
                box.current?.querySelector<HTMLButtonElement>("[data-create]")?.focus();
              }}
            >
              {text}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** Words are judged once the typing rests: half a word is known to nobody. */
const REST = 700;

function StarterHint({ prompt }: { prompt: string }) {
  const [judged, setJudged] = useState(prompt);
  useEffect(() => {
    const timer = setTimeout(() => setJudged(prompt), REST);
    return () => clearTimeout(timer);
  }, [prompt]);
  return (
    <p className={css.hint} role="status">
      {starterHint(judged)}
    </p>
  );
}
