module example.com/libc

go 1.26.0
