// The Apps view (placeholder).
import { EmptyState, View } from "../ui";

export default function Apps() {
  return (
    <View title="Apps">
      <EmptyState title="Soon">This view is being built.</EmptyState>
    </View>
  );
}
