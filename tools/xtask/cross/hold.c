/* Holds a file open as programs on Windows do: `hold PATH` lets others read, `hold PATH alone` lets nobody.
   Says "held", and lets go when its input ends. */
#include <stdio.h>
#include <windows.h>

int wmain(int count, wchar_t **words) {
    if (count < 2) return 2;
    DWORD shared = count > 2 ? 0 : FILE_SHARE_READ;
    HANDLE file = CreateFileW(words[1], GENERIC_READ, shared, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        fprintf(stderr, "cannot open: %lu\n", GetLastError());
        return 1;
    }
    puts("held");
    fflush(stdout);
    while (getchar() != EOF) {}
    CloseHandle(file);
    return 0;
}
