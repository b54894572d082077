package spring;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

@SpringBootApplication
@RestController
public class App {
    public static void main(String[] arguments) {
        SpringApplication.run(App.class, arguments);
    }

    @GetMapping("/sum")
    public String sum(@RequestParam int n) {
        long sum = 0;
        for (int i = 1; i <= n; i++) sum += i;
        return Long.toString(sum);
    }
}
