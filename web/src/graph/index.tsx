// The Graph view (placeholder).
import { EmptyState, View } from "../ui";

export default function Graph() {
  return (
    <View title="Graph">
      <EmptyState title="Soon">This view is being built.</EmptyState>
    </View>
  );
}
