// The Create view (placeholder).
import { EmptyState, View } from "../ui";

export default function Create() {
  return (
    <View title="Create">
      <EmptyState title="Soon">This view is being built.</EmptyState>
    </View>
  );
}
