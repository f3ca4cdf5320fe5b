// Search box and filters above the grid.
import { useDeferredValue, useEffect, useMemo, useState } from "react";
import { Button, Field, Icon, IconButton, Select, TextInput } from "../ui";
import { active, type Filters, NO_FILTERS } from "./filter";
import { readAll, useKnown } from "./known";
import { useSession } from "./session";
import { modelName } from "./settings";
import css from "./Results.module.css";

export function FilterBar({ count }: { count: number }) {
  const { filters, setFilters, clearFilters, selecting, setSelecting } = useSession();
  const [open, setOpen] = useState(filters.status !== NO_FILTERS.status || filters.when !== "any" || filters.model !== "");
  const [text, setText] = useState(filters.text);
  const later = useDeferredValue(text);
  useEffect(() => setFilters({ text: later }), [later, setFilters]);
  useEffect(() => {
    if (filters.text === "") setText("");
  }, [filters.text]);

  const known = useKnown((s) => s.byId);
  const version = useKnown((s) => s.version);
  const models = useMemo(() => [...new Set([...known.values()].map((s) => s.model).filter(Boolean))].sort((a, b) => a.localeCompare(b)), [known, version]);
  // The list of models is complete only once all prompts are known.
  useEffect(() => {
    if (open) void readAll();
  }, [open]);
  const on = active(filters);
  return (
    <>
      <div className={css.bar}>
        <div className={css.search} role="search">
          <Icon name="search" />
          <TextInput type="search" value={text} onChange={setText} placeholder="Search prompt, seed or model" aria-label="Search results" />
        </div>
        <IconButton
          variant="plain"
          icon="star"
          label="Favourites only"
          pressed={filters.favourites}
          onClick={() => setFilters({ favourites: !filters.favourites })}
        />
        <Button icon="settings" aria-expanded={open} onClick={() => setOpen(!open)}>
          Filter
        </Button>
        <Button icon="check" aria-pressed={selecting} onClick={() => setSelecting(!selecting)}>
          Select
        </Button>
      </div>
      {open && (
        <div className={css.filters}>
          <Field label="Outcome">
            <Select
              value={filters.status}
              onChange={(v) => setFilters({ status: v as Filters["status"] })}
              options={[
                { value: "results", label: "Finished or failed" },
                { value: "completed", label: "Finished" },
                { value: "failed", label: "Failed" },
                { value: "cancelled", label: "Cancelled" },
                { value: "all", label: "Everything" },
              ]}
            />
          </Field>
          <Field label="Model">
            <Select
              value={filters.model}
              onChange={(model) => setFilters({ model })}
              options={[{ value: "", label: "Any model" }, ...models.map((m) => ({ value: m, label: modelName(m) }))]}
            />
          </Field>
          <Field label="When">
            <Select
              value={filters.when}
              onChange={(v) => setFilters({ when: v as Filters["when"] })}
              options={[
                { value: "any", label: "Any time" },
                { value: "today", label: "Today" },
                { value: "week", label: "Last 7 days" },
                { value: "month", label: "Last 30 days" },
                { value: "between", label: "Choose days" },
              ]}
            />
          </Field>
          {filters.when === "between" && (
            <>
              <Field label="From">
                <TextInput type="date" value={filters.from} onChange={(from) => setFilters({ from })} />
              </Field>
              <Field label="To">
                <TextInput type="date" value={filters.to} onChange={(to) => setFilters({ to })} />
              </Field>
            </>
          )}
          {on && (
            <div className={css.clear}>
              <Button icon="close" onClick={clearFilters}>
                Clear filters
              </Button>
            </div>
          )}
        </div>
      )}
      <p className={css.count} role="status">
        {on ? `${count} ${count === 1 ? "result matches" : "results match"}` : ""}
      </p>
    </>
  );
}
