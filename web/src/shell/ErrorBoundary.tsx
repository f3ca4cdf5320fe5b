// A view that fails says so and can be opened again; the rest of the page goes on.
import { Component, type ReactNode } from "react";
import { Button, EmptyState } from "../ui";

export class ErrorBoundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <EmptyState
        icon="warning"
        title="This view stopped working"
        action={
          <>
            <Button variant="primary" icon="refresh" onClick={() => this.setState({ error: null })}>
              Open it again
            </Button>
            <Button variant="quiet" onClick={() => location.reload()}>
              Reload the page
            </Button>
          </>
        }
      >
        <p>Your pictures and your queue are safe. What went wrong: {error.message}</p>
      </EmptyState>
    );
  }
}
