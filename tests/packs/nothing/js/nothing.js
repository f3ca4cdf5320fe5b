window.nothing = 1;
