// Workflow ids must be accepted by the other editor, which wants UUIDs.
import { expect, it } from "vitest";
import { CREATE_WORKFLOWS, workflowId } from "../api/identity";

it("makes ids in the form of a UUID, each its own", () => {
  expect(workflowId()).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(workflowId()).not.toBe(workflowId());
  // By this Create finds its own jobs again.
  expect(workflowId().startsWith(CREATE_WORKFLOWS)).toBe(true);
});
