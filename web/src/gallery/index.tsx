// The Gallery view (placeholder).
import { EmptyState, View } from "../ui";

export default function Gallery() {
  return (
    <View title="Gallery">
      <EmptyState title="Soon">This view is being built.</EmptyState>
    </View>
  );
}
