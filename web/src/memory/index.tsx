// The Memory view (placeholder).
import { EmptyState, View } from "../ui";

export default function Memory() {
  return (
    <View title="Memory">
      <EmptyState title="Soon">This view is being built.</EmptyState>
    </View>
  );
}
