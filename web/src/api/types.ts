// The shapes the server sends and takes, as far as the page uses them.

export interface FileRef {
  filename: string;
  subfolder: string;
  type: "output" | "input" | "temp";
}

/** A link in an API prompt: node id and output slot. */
export type ApiLink = [string, number];

export interface ApiNode {
  class_type: string;
  inputs: Record<string, unknown>;
  _meta?: { title?: string };
}
export type ApiPrompt = Record<string, ApiNode>;

export interface UiSlot {
  name: string;
  type: string | number;
  label?: string;
  link?: number | null;
  links?: number[] | null;
  widget?: { name: string };
  shape?: number;
  slot_index?: number;
  [more: string]: unknown;
}

export interface UiNode {
  id: number | string;
  type: string;
  pos: [number, number] | { 0: number; 1: number };
  size?: [number, number] | { 0: number; 1: number };
  flags?: { collapsed?: boolean; [more: string]: unknown };
  order?: number;
  /** 0 always, 2 muted, 4 bypassed. */
  mode?: number;
  title?: string;
  color?: string;
  bgcolor?: string;
  inputs?: UiSlot[];
  outputs?: UiSlot[];
  properties?: Record<string, unknown>;
  widgets_values?: unknown[] | Record<string, unknown>;
  [more: string]: unknown;
}

export interface UiGroup {
  title?: string;
  bounding: [number, number, number, number];
  color?: string;
  [more: string]: unknown;
}

export interface UiSubgraph {
  id: string;
  name?: string;
  nodes: UiNode[];
  links: unknown[];
  groups?: UiGroup[];
  inputs?: unknown[];
  outputs?: unknown[];
  [more: string]: unknown;
}

export interface UiWorkflow {
  nodes: UiNode[];
  links: unknown[];
  groups?: UiGroup[];
  definitions?: { subgraphs?: UiSubgraph[] };
  version: number;
  extra?: Record<string, unknown>;
  config?: Record<string, unknown>;
  last_node_id: number;
  last_link_id: number;
  id?: string;
  revision?: number;
  [more: string]: unknown;
}

/** `["INT", {default: 1}]`, or a list of choices in place of the type. */
export type InputSpec = [string | unknown[]] | [string | unknown[], Record<string, unknown>];

export interface NodeInfo {
  name: string;
  display_name?: string;
  description?: string;
  category?: string;
  input: { required?: Record<string, InputSpec>; optional?: Record<string, InputSpec>; hidden?: Record<string, unknown> };
  input_order?: { required?: string[]; optional?: string[]; hidden?: string[] };
  output: (string | unknown[])[];
  output_is_list?: boolean[];
  output_name?: string[];
  output_tooltips?: string[];
  output_node?: boolean;
  deprecated?: boolean;
  experimental?: boolean;
  python_module?: string;
  [more: string]: unknown;
}
export interface ObjectInfo {
  [className: string]: NodeInfo;
}

export interface NodeErrorReason {
  type: string;
  message: string;
  details: string;
  extra_info?: Record<string, unknown>;
}
export interface NodeError {
  errors: NodeErrorReason[];
  dependent_outputs: string[];
  class_type: string;
}

export type JobStatus = "pending" | "in_progress" | "completed" | "failed" | "cancelled";

/** What failed, as the event `execution_error` tells it. */
export interface ExecutionError {
  node_id?: string;
  node_type?: string;
  exception_message?: string;
  exception_type?: string;
  traceback?: string[];
  [more: string]: unknown;
}

/** A file in a node's output, with which node made it. */
export interface OutputFile extends FileRef {
  nodeId?: string;
  mediaType?: string;
}

export interface Job {
  id: string;
  status: JobStatus;
  /** Smaller runs first. */
  priority?: number;
  /** Milliseconds since 1970. */
  create_time: number;
  execution_start_time?: number;
  execution_end_time?: number;
  execution_error?: ExecutionError;
  outputs_count?: number;
  previewable_outputs_count?: number;
  preview_output?: OutputFile;
  workflow_id?: string;
  /** Waits until it is released. */
  held?: boolean;
  /** Why, where the program itself holds it. */
  held_reason?: string;
}

/** UI output of one node: `images` and the like hold files, other keys anything. */
export type NodeOutput = Record<string, unknown>;

export interface JobDetails extends Job {
  outputs?: Record<string, NodeOutput>;
  execution_status?: { status_str?: string; completed?: boolean; messages?: [string, Record<string, unknown>][] };
  workflow: {
    prompt: ApiPrompt;
    extra_data: { extra_pnginfo?: { workflow?: UiWorkflow; [more: string]: unknown }; client_id?: string; [more: string]: unknown };
  };
}

export interface JobPage {
  jobs: Job[];
  pagination: { offset: number; limit: number; total: number; has_more: boolean };
}

export interface MissingNode {
  id: string;
  class_type: string;
  title: string;
}
export interface MissingModel {
  node_id: string;
  class_type: string;
  input: string;
  wanted: string;
  choices: string[];
  /** The kind of model folder it belongs in. */
  folder?: string;
  /** A file that is plausibly the same under another name. */
  closest?: string | null;
  /** Where the workflow says it can be had. */
  url?: string | null;
}
export interface MissingFile {
  node_id: string;
  input: string;
  wanted: string;
}
export interface Inspection {
  kind: "ui" | "api";
  workflow: UiWorkflow | null;
  prompt: ApiPrompt;
  missing: { nodes: MissingNode[]; models: MissingModel[]; files: MissingFile[] };
  warnings: string[];
}

/** One entry of `progress_state`. */
export interface NodeProgress {
  value: number;
  max: number;
  state: "pending" | "running" | "finished" | "error";
  node_id: string;
  prompt_id: string;
  display_node_id?: string;
  parent_node_id?: string | null;
  real_node_id?: string;
}
