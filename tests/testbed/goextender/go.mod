module gpushare.test/goextender

go 1.26.0
